package kubernetes

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/strvals"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// matrix returns the files of values in testdata, and "" for the chart's defaults.
func matrix(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.yaml")
	must(t, err)
	files = slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, ".golden.yaml") })
	if len(files) < 12 {
		t.Fatalf("%d files of values: %q", len(files), files)
	}
	return append(files, "")
}

// one returns the only manifest of a kind.
func one[T any](t *testing.T, manifests []string, kind string) T {
	t.Helper()
	all := decode[T](t, manifests, kind)
	if len(all) != 1 {
		t.Fatalf("%d manifests of kind %s, want 1", len(all), kind)
	}
	return all[0]
}

// TestMatrix renders each file of values. Helm and Kubernetes accept the manifests, and each
// reference between them has its target.
func TestMatrix(t *testing.T) {
	t.Parallel()
	for _, file := range matrix(t) {
		for _, m := range lint.All("chart", values(t, file), "gpusteward", true).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", file, m)
			}
		}
		manifests := render(t, file)
		for _, m := range manifests {
			if err := validate(m); err != nil {
				t.Errorf("%s: %v\n%s", file, err, m[:min(len(m), 300)])
			}
		}
		d := one[appsv1.DaemonSet](t, manifests, "DaemonSet")
		maps := []string{"tenants"} // of testdata/extra.yaml
		if name, ok := values(t, file)["existingConfigMap"].(string); ok {
			maps = append(maps, name)
		}
		for _, m := range decode[corev1.ConfigMap](t, manifests, "ConfigMap") {
			maps = append(maps, m.Name)
		}
		pod := d.Spec.Template
		volumes := map[string]bool{}
		for _, v := range pod.Spec.Volumes {
			if volumes[v.Name] {
				t.Errorf("%s: two volumes are called %s", file, v.Name)
			}
			volumes[v.Name] = true
			if v.ConfigMap != nil && !slices.Contains(maps, v.ConfigMap.Name) {
				t.Errorf("%s: the volume %s is of the ConfigMap %s, and there are %q", file, v.Name, v.ConfigMap.Name, maps)
			}
		}
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			for _, m := range c.VolumeMounts {
				if !volumes[m.Name] {
					t.Errorf("%s: %s mounts %s, which is no volume", file, c.Name, m.Name)
				}
			}
		}
		selects := func(kind string, selector map[string]string) {
			if len(selector) == 0 {
				t.Errorf("%s: the %s selects everything", file, kind)
			}
			for k, v := range selector {
				if pod.Labels[k] != v {
					t.Errorf("%s: the %s selects %s=%s, and the pods have %q", file, kind, k, v, pod.Labels[k])
				}
			}
		}
		selects("DaemonSet", d.Spec.Selector.MatchLabels)
		for _, p := range decode[networkingv1.NetworkPolicy](t, manifests, "NetworkPolicy") {
			selects("NetworkPolicy", p.Spec.PodSelector.MatchLabels)
		}
		for _, p := range decode[monitoringv1.PodMonitor](t, manifests, "PodMonitor") {
			selects("PodMonitor", p.Spec.Selector.MatchLabels)
		}
		services := decode[corev1.Service](t, manifests, "Service")
		for _, s := range services {
			selects("Service", s.Spec.Selector)
		}
		for _, m := range decode[monitoringv1.ServiceMonitor](t, manifests, "ServiceMonitor") {
			for k, v := range m.Spec.Selector.MatchLabels {
				if len(services) != 1 || services[0].Labels[k] != v {
					t.Errorf("%s: the ServiceMonitor selects %s=%s, which no Service has", file, k, v)
				}
			}
		}
		account := one[corev1.ServiceAccount](t, manifests, "ServiceAccount").Name
		if pod.Spec.ServiceAccountName != account {
			t.Errorf("%s: the pods have the account %s, not %s", file, pod.Spec.ServiceAccountName, account)
		}
		for _, b := range decode[rbacv1.ClusterRoleBinding](t, manifests, "ClusterRoleBinding") {
			if b.Subjects[0].Name != account {
				t.Errorf("%s: the role is bound to %s, not %s", file, b.Subjects[0].Name, account)
			}
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for file, name := range map[string]string{
		"": "gpusteward", "testdata/names.yaml": "gpusteward-gpu-monitoring", "testdata/fullname.yaml": "gpus",
	} {
		for _, m := range render(t, file) {
			var o struct {
				Kind     string
				Metadata struct{ Name string }
			}
			must(t, yaml.Unmarshal([]byte(m), &o))
			if got := strings.TrimPrefix(o.Metadata.Name, "gpusteward-"); o.Kind == "ClusterRoleBinding" &&
				strings.HasPrefix(got, name) { // it has the namespace before its name
				continue
			}
			if o.Metadata.Name != name && !strings.HasPrefix(o.Metadata.Name, name+"-") {
				t.Errorf("%s: a %s is called %s, want %s", file, o.Kind, o.Metadata.Name, name)
			}
		}
	}
}

func TestServiceListsEveryAgent(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"testdata/service.yaml", "testdata/servicemonitor.yaml"} {
		s := one[corev1.Service](t, render(t, file), "Service")
		if s.Spec.ClusterIP != "None" || !s.Spec.PublishNotReadyAddresses || len(s.Annotations) == 0 {
			t.Errorf("%s: %+v", file, s)
		}
	}
	if all := decode[corev1.Service](t, render(t, ""), "Service"); len(all) != 0 {
		t.Errorf("a Service is on by default: %+v", all)
	}
}

// TestMonitorsAgree checks that both monitors give a target the same labels, so that rules and
// dashboards work with either.
func TestMonitorsAgree(t *testing.T) {
	t.Parallel()
	s := one[monitoringv1.ServiceMonitor](t, render(t, "testdata/servicemonitor.yaml"), "ServiceMonitor").Spec.Endpoints[0]
	p := one[monitoringv1.PodMonitor](t, render(t, "testdata/names.yaml"), "PodMonitor").Spec.PodMetricsEndpoints[0]
	if s.Port != *p.Port || s.Interval != "30s" || s.ScrapeTimeout != "10s" {
		t.Errorf("%+v", s)
	}
	if n := len(p.RelabelConfigs); len(s.RelabelConfigs) != n+1 || s.RelabelConfigs[n].TargetLabel != "cluster" {
		t.Errorf("%d and %d relabelings", len(s.RelabelConfigs), len(p.RelabelConfigs))
	}
	all := one[monitoringv1.PodMonitor](t, render(t, "testdata/dcgm.yaml"), "PodMonitor").Spec.PodMetricsEndpoints
	if d := all[1]; len(all) != 2 || d.Path != "/metrics/dcgm" || !d.HonorLabels || d.Interval != "20s" ||
		*d.RelabelConfigs[0].Replacement != "gpusteward-dcgm" || *all[0].RelabelConfigs[0].Replacement != "gpusteward" {
		t.Errorf("for dcgm-exporter's names: %+v", all)
	}
	for i, r := range p.RelabelConfigs {
		if q := s.RelabelConfigs[i]; q.TargetLabel != r.TargetLabel || q.Regex != r.Regex || q.Action != r.Action {
			t.Errorf("relabeling %d: %+v, %+v", i, r, q)
		}
	}
	if drop := regexp.MustCompile("^(?:" + s.RelabelConfigs[2].Regex + ")$"); !drop.MatchString("service") ||
		!drop.MatchString("pod") || drop.MatchString("instance") {
		t.Errorf("labels of %v are dropped", drop)
	}
}

func TestExtras(t *testing.T) {
	t.Parallel()
	pod := one[appsv1.DaemonSet](t, render(t, "testdata/extra.yaml"), "DaemonSet").Spec.Template
	c := pod.Spec.Containers[0]
	env := map[string]corev1.EnvVar{}
	for _, e := range c.Env {
		env[e.Name] = e
	}
	if env["GOMEMLIMIT"].Value != "400MiB" || env["HOST_IP"].ValueFrom.FieldRef.FieldPath != "status.hostIP" ||
		env["NODE_NAME"].ValueFrom == nil {
		t.Errorf("the environment is %+v", c.Env)
	}
	if m := c.VolumeMounts[len(c.VolumeMounts)-1]; m.MountPath != "/etc/gpusteward-tenants" ||
		pod.Labels["team"] != "gpu" {
		t.Errorf("%+v, %v", m, pod.Labels)
	}
	s := one[appsv1.DaemonSet](t, render(t, "testdata/openshift.yaml"), "DaemonSet").Spec.Template.Spec.SecurityContext
	if s.SELinuxOptions.Type != "spc_t" || s.SeccompProfile.Type != corev1.SeccompProfileTypeLocalhost {
		t.Errorf("%+v", s)
	}
	s = one[appsv1.DaemonSet](t, render(t, ""), "DaemonSet").Spec.Template.Spec.SecurityContext
	if s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%+v", s)
	}
}

// TestPodResources checks that the chart mounts the given directory of the kubelet, and that without
// privileges nobody asks the kubelet and the observer reads no answer. TestManifests has the mounts.
func TestPodResources(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{"testdata/podresources.yaml": "/var/lib/k0s/kubelet/pod-resources",
		"testdata/unprivileged.yaml": ""} {
		pod := one[appsv1.DaemonSet](t, render(t, file), "DaemonSet").Spec.Template.Spec
		dir, used := "", false
		for _, v := range pod.Volumes {
			if v.Name == "pod-resources" && v.HostPath != nil {
				dir = v.HostPath.Path
			}
		}
		for _, c := range pod.Containers {
			used = used || c.Name == "allocations" ||
				slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "allocations" })
		}
		if dir != want || used != (want != "") {
			t.Errorf("%s: the directory is %q, want %q; in use: %v", file, dir, want, used)
		}
	}
}

// TestLeastRole checks that the role has what its container needs, and nothing without it.
func TestLeastRole(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"":                        "",
		"testdata/npd.yaml":       "",
		"testdata/condition.yaml": "[nodes] [get]; [nodes/status] [patch]; ",
		"testdata/health.yaml": "[nodes] [get]; [nodes/status] [patch]; [resourceslices] [list]; " +
			"[devicetaintrules] [list create delete]; ",
	} {
		got := ""
		for _, r := range decode[rbacv1.ClusterRole](t, render(t, file), "ClusterRole") {
			for _, rule := range r.Rules {
				got += fmt.Sprintf("%v %v; ", rule.Resources, rule.Verbs)
			}
		}
		if got != want {
			t.Errorf("%s: the role is %q, want %q", file, got, want)
		}
	}
}

func TestExistingConfigMap(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]struct {
		name       string
		containers int
	}{
		"testdata/configmap.yaml":        {"team.gpusteward", 2},
		"testdata/configmap-broker.yaml": {"gpusteward-tenants", 4},
	} {
		manifests := render(t, file)
		pod := one[appsv1.DaemonSet](t, manifests, "DaemonSet").Spec.Template.Spec
		if got := pod.Volumes[0].ConfigMap.Name; got != want.name || len(pod.Containers) != want.containers {
			t.Errorf("%s: the configuration is %s, with %d containers", file, got, len(pod.Containers))
		}
		for _, m := range decode[corev1.ConfigMap](t, manifests, "ConfigMap") {
			if m.Data["gpusteward.yml"] != "" {
				t.Errorf("%s: the chart has a configuration as well: %s", file, m.Name)
			}
		}
	}
}

// TestConfigKeys compares the keys that the schema knows with those of the configuration.
func TestConfigKeys(t *testing.T) {
	t.Parallel()
	type node struct {
		PropertyNames struct{ Enum []string }
		Properties    map[string]node
	}
	var schema node
	var config map[string]any
	for path, into := range map[string]any{"chart/values.schema.json": &schema, "../gpusteward.yml": &config} {
		text, err := os.ReadFile(path)
		if err == nil {
			err = yaml.Unmarshal(text, into)
		}
		must(t, err)
	}
	older := map[string][]string{".health": {"page"}, ".enforcer": {"mps"}, ".web": {"max_scrapes"}, ".enforcer.default.reclaim": {"do"}}
	var compare func(path string, config map[string]any, n node)
	compare = func(path string, config map[string]any, n node) {
		want := slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(config)), older[path]...)))
		if got := slices.Sorted(slices.Values(n.PropertyNames.Enum)); !slices.Equal(got, want) {
			t.Errorf("values.schema.json has in config%s the keys %q, want %q", path, got, want)
		}
		for key, value := range config {
			if m, ok := value.(map[string]any); ok && len(m) > 0 {
				compare(path+"."+key, m, n.Properties[key])
			}
		}
	}
	compare("", config, schema.Properties["config"])
}

// TestInstallAsDocumented runs make image's script with a stand-in for podman, and the command
// line of helm install in docs/kubernetes.md: the pods run the image that was built.
func TestInstallAsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/kubernetes.md")
	must(t, err)
	text = regexp.MustCompile(`\\\n\s*`).ReplaceAll(text, nil)
	made := regexp.MustCompile(`(?m)^make image IMAGE=(\S+)`).FindSubmatch(text)
	install := regexp.MustCompile(`(?m)^helm install gpusteward (\S+) -n gpusteward (.*)$`).FindSubmatch(text)
	if made == nil || install == nil {
		t.Fatal("docs/kubernetes.md has no make image or no helm install")
	}
	dir := t.TempDir()
	// podman manifest push ... NAME oci-archive:ARCHIVE:NAME
	podman := "#!/bin/sh\nfor last; do :; done\n" +
		`case $last in oci-archive:*) last=${last#*:}; echo "${last#*:}" >"${last%%:*}" ;; esac` + "\n"
	must(t, os.WriteFile(filepath.Join(dir, "podman"), []byte(podman), 0o755))
	build := exec.Command("../container/build.sh")
	build.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "BUILDER=podman", "DIST="+dir, "ARCH=amd64",
		"IMAGE="+string(made[1]))
	out, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	built, err := os.ReadFile(strings.TrimSpace(string(out)))
	must(t, err)
	v := map[string]any{}
	arguments := strings.Fields(string(install[2]))
	for i := 0; i < len(arguments); i += 2 {
		switch value := arguments[i+1]; arguments[i] {
		case "-f":
			v = chartutil.MergeTables(values(t, filepath.Join(dir, strings.TrimPrefix(value, "dist/"))), v)
		case "--set":
			must(t, strvals.ParseInto(value, v))
		default:
			t.Fatalf("an unknown flag: %s", arguments[i])
		}
	}
	c, err := loader.Load(filepath.Join("../..", string(install[1])))
	must(t, err)
	manifests, err := rendered(c, v)
	must(t, err)
	pod := one[appsv1.DaemonSet](t, manifests, "DaemonSet").Spec.Template.Spec
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if want := strings.TrimSpace(string(built)); c.Image != want || !strings.HasPrefix(want, string(made[1])+":") {
			t.Errorf("%s runs %s, and %s was built", c.Name, c.Image, want)
		}
	}
}
