// Package kubernetes tests the chart with Helm's own engine, and against the types of Kubernetes
// and the Prometheus operator. It is a separate module, which keeps these dependencies out of
// the agent's. It uses the versions of deploy/tools, which are already built.
package kubernetes

import (
	"flag"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/opencontainers/runtime-spec/specs-go"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

var update = flag.Bool("update", false, "write the golden files, including manifests.yaml")

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // Helm logs each symbolic link that it follows
	os.Exit(m.Run())
}

// agent is the program, built by make build.
const agent = "../../gpusteward"

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// values reads a file of values; "" stands for the chart's defaults.
func values(t *testing.T, file string) map[string]any {
	t.Helper()
	if file == "" {
		return nil
	}
	v, err := chartutil.ReadValuesFile(file)
	must(t, err)
	return v
}

// rendered renders a chart and returns its manifests in the order of installation.
func rendered(c *chart.Chart, v map[string]any) (all []string, err error) {
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.APIVersions = append(slices.Clone(capabilities.APIVersions), // Helm knows groups only
		"admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy")
	release := chartutil.ReleaseOptions{Name: "gpusteward", Namespace: "gpusteward", Revision: 1, IsInstall: true}
	top, err := chartutil.ToRenderValues(c, v, release, capabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, top)
	if err != nil {
		return nil, err
	}
	for name := range files {
		if filepath.Base(name) == "NOTES.txt" || strings.HasPrefix(filepath.Base(name), "_") {
			delete(files, name)
		}
	}
	_, manifests, err := releaseutil.SortManifests(files, capabilities.APIVersions, releaseutil.InstallOrder)
	for _, m := range manifests {
		all = append(all, strings.TrimSpace(m.Content)+"\n")
	}
	return all, err
}

func render(t *testing.T, file string) []string {
	t.Helper()
	c, err := loader.Load("chart")
	must(t, err)
	all, err := rendered(c, values(t, file))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return all
}

// decode returns the manifests of one kind.
func decode[T any](t *testing.T, manifests []string, kind string) (all []T) {
	t.Helper()
	for _, m := range manifests {
		if strings.Contains(m, "\nkind: "+kind+"\n") {
			var one T
			if err := yaml.UnmarshalStrict([]byte(m), &one); err != nil {
				t.Fatalf("%v in\n%s", err, m)
			}
			all = append(all, one)
		}
	}
	return all
}

// TestManifests compares the rendered chart with the golden files, and checks that Kubernetes,
// the operator and the agent accept it.
func TestManifests(t *testing.T) {
	t.Parallel()
	for values, golden := range map[string]string{
		"":                         "manifests.yaml",
		"testdata/broker.yaml":     "testdata/broker.golden.yaml",
		"testdata/npd.yaml":        "testdata/npd.golden.yaml",
		"testdata/health.yaml":     "testdata/health.golden.yaml",
		"testdata/everything.yaml": "testdata/everything.golden.yaml",
	} {
		text := "# Rendered from deploy/kubernetes/chart by make generate; do not edit.\n"
		for _, m := range render(t, values) {
			if err := validate(m); err != nil {
				t.Errorf("%s: %v\n%s", values, err, m[:min(len(m), 300)])
			}
			// Rules and dashboards are generated files of their own.
			if !strings.Contains(m, "\nkind: PrometheusRule\n") && !strings.Contains(m, "-dashboard-") {
				text += "---\n" + m
			}
		}
		if *update {
			must(t, os.WriteFile(golden, []byte(text), 0o644))
		}
		if want, err := os.ReadFile(golden); err != nil || string(want) != text {
			t.Errorf("%s differs from the chart (%v); run make generate, then git diff", golden, err)
		}
		for _, m := range decode[corev1.ConfigMap](t, render(t, values), "ConfigMap") {
			if config, ok := m.Data["gpusteward.yml"]; ok {
				file := filepath.Join(t.TempDir(), "gpusteward.yml")
				must(t, os.WriteFile(file, []byte(config), 0o644))
				if out, err := exec.Command(agent, "config", "check", file).CombinedOutput(); err != nil {
					t.Errorf("%s: the agent refuses its configuration (%v): %s", values, err, out)
				}
			}
		}
	}
	for _, example := range []string{"pod.yaml", "diag.yaml"} {
		text, err := os.ReadFile(example)
		if err == nil {
			err = validate(string(text))
		}
		if err != nil {
			t.Errorf("%s: %v", example, err)
		}
	}
}

// TestRights checks that each container has exactly the permissions that docs/kubernetes.md lists.
func TestRights(t *testing.T) {
	t.Parallel()
	added := map[string][]corev1.Capability{"install": {"CHOWN"}, "broker": {"DAC_OVERRIDE", "KILL", "SYS_PTRACE", "SYS_RESOURCE"},
		"allocations": {}}
	for _, file := range matrix(t) {
		for _, d := range decode[appsv1.DaemonSet](t, render(t, file), "DaemonSet") {
			pod := d.Spec.Template.Spec
			if pod.HostNetwork || pod.HostIPC || !pod.HostPID ||
				pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
				t.Errorf("%s: the pod has the host's network or IPC, a token, or no PID namespace of the host", file)
			}
			for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
				s, root := c.SecurityContext, added[c.Name] != nil
				if !*s.ReadOnlyRootFilesystem {
					t.Errorf("%s: %s can write to its image", file, c.Name)
				}
				for _, m := range c.VolumeMounts {
					if m.Name == "token" && c.Name != "node-problem-detector" && c.Name != "health" {
						t.Errorf("%s: %s has a token", file, c.Name)
					}
				}
				if c.Name == "observer" && file == "testdata/everything.yaml" { // kernelLog
					if s.Privileged == nil || !*s.Privileged {
						t.Errorf("%s: the observer cannot open /dev/kmsg", file)
					}
					continue
				}
				if s.Privileged != nil && *s.Privileged || *s.AllowPrivilegeEscalation ||
					!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
					!slices.Equal(s.Capabilities.Add, added[c.Name]) {
					t.Errorf("%s: %s has %v, want the capabilities %v", file, c.Name, s, added[c.Name])
				}
				if !root && (s.RunAsNonRoot == nil || !*s.RunAsNonRoot || *s.RunAsUser != 65532) ||
					root && *s.RunAsUser != 0 {
					t.Errorf("%s: %s is user %d", file, c.Name, *s.RunAsUser)
				}
			}
		}
	}
}

func TestBadValuesAreNamed(t *testing.T) {
	t.Parallel()
	c, err := loader.Load("chart")
	must(t, err)
	for text, want := range map[string]string{
		"prometheusRule: {objectives: .99}":                                      "objectives",
		"tolleration: []":                                                        "tolleration",
		"image: {tags: a}":                                                       "tags",
		"image: {pullPolicy: Sometimes}":                                         "pullPolicy",
		"kernelLog: yes please":                                                  "kernelLog",
		"stateDir: var/lib":                                                      "stateDir",
		"broker: {cdiDir: cdi}":                                                  "cdiDir",
		"config: {enforcer: {enabled: maybe}}":                                   "enabled",
		"podMonitor: {interval: 15s}":                                            "interval",
		"webConfigSecret: {name: a}":                                             "webConfigSecret",
		"resources: {request: {cpu: 1}}":                                         "request",
		"extraVolumeMounts: [{name: a}]":                                         "mountPath",
		"nodeProblemDetector: {enable: true}":                                    "enable",
		"podLabels: {a: 1}":                                                      "podLabels",
		"prometheusRule: {judgement: shadow}":                                    "judgement",
		"networkPolicy: {from: {a: b}}":                                          "from",
		"serviceAccount: {create: false}":                                        "create",
		"config: {enforcer: [a]}":                                                "enforcer",
		"dashboards: {labels: {a: {b: c}}}":                                      "labels",
		"updateStrategy: RollingUpdate":                                          "updateStrategy",
		"nodeSelector: {kubernetes.io/os: [a]}":                                  "nodeSelector",
		"nameOveride: a":                                                         "nameOveride",
		"nameOverride: GPU_Monitoring":                                           "nameOverride",
		"fullnameOverride: -a":                                                   "fullnameOverride",
		"nodeHealth: {taint: PreferNoSchedule}":                                  "taint",
		"nodeHealth: {hold: 60}":                                                 "hold",
		"nodeHealth: {interval: 10s}":                                            "interval",
		"nodeHealth: {enabled: true}\nnodeProblemDetector: {enabled: true}":      "nodeHealth.enabled",
		"podResources: {enabled: 1}":                                             "enabled",
		"podResources: {dir: pod-resources}":                                     "dir",
		"podResources: {socket: /a}":                                             "socket",
		"extraEnv: {A: b}":                                                       "extraEnv",
		"extraEnv: [{name: A, val: b}]":                                          "val",
		"extraEnv: [{value: b}]":                                                 "name",
		"extraVolumes: [{hostPath: {path: /}}]":                                  "name",
		"securityContext: {runAsUser: 0}":                                        "runAsUser",
		"securityContext: {privileged: true}":                                    "privileged",
		"existingConfigMap: {name: a}":                                           "existingConfigMap",
		"config: {colectors: {}}":                                                "colectors",
		"config: {collectors: {per_proces: true}}":                               "per_proces",
		"config: {enforcer: {default: {reclaim: {idel: 1m}}}}":                   "idel",
		"config: [a]":                                                            "config",
		"service: {enable: true}":                                                "enable",
		"service: {type: ClusterIP}":                                             "type",
		"serviceMonitor: {interval: 15s}":                                        "interval",
		"serviceMonitor: {labels: [a]}":                                          "labels",
		"tolerations: [{keys: a}]":                                               "keys",
		"tolerations: [{effect: Never}]":                                         "effect",
		"updateStrategy: {maxUnavailable: 1}":                                    "maxUnavailable",
		"affinity: {nodeAfinity: {}}":                                            "nodeAfinity",
		"existingConfigMap: a\nconfig: {health: {labels: {a: b}}}":               "health",
		"existingConfigMap: a\nconfig: {enforcer: {enabled: true, tenants: []}}": "tenants",
		"podMonitor: {enabled: true}\nserviceMonitor: {enabled: true}":           "serviceMonitor.enabled",
	} {
		v, err := chartutil.ReadValues([]byte(text))
		must(t, err)
		if _, err := rendered(c, v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error that names %s", text, err, want)
		}
	}
}

// TestPackage checks that a packaged chart has all generated rules and dashboards.
func TestPackage(t *testing.T) {
	t.Parallel()
	c, err := loader.Load("chart")
	must(t, err)
	archive, err := chartutil.Save(c, t.TempDir())
	must(t, err)
	if c, err = loader.Load(archive); err != nil {
		t.Fatal(err)
	}
	packed := map[string]string{}
	for _, f := range c.Files {
		packed[f.Name] = string(f.Data)
	}
	text, err := chartutil.ReadValues([]byte("prometheusRule: {enabled: true, objectives: false}"))
	must(t, err)
	less, err := rendered(c, text)
	if all := strings.Join(less, ""); err != nil || strings.Contains(all, "-objectives\n") ||
		strings.Contains(all, "-judgement\n") || !strings.Contains(all, "-slo\n") {
		t.Errorf("%v: rules without objectives:\n%s", err, all)
	}
	manifests, err := rendered(c, values(t, "testdata/everything.yaml"))
	must(t, err)
	shown := strings.Join(manifests, "")
	sources := []string{"npd-gpusteward.json"}
	for _, pattern := range []string{"../../alerts/*.rules.yml", "../../dashboards/gpusteward-*.json"} {
		more, err := filepath.Glob(pattern)
		if err != nil || len(more) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		sources = append(sources, more...)
	}
	for _, source := range sources {
		text, err := os.ReadFile(source)
		must(t, err)
		name := "files/" + filepath.Base(source)
		if packed[name] != string(text) {
			t.Errorf("the chart lacks %s; add a link to %s in deploy/kubernetes/chart/files", name, source)
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if !strings.Contains(shown, strings.TrimSpace(lines[len(lines)/2])) {
			t.Errorf("%s is in no manifest", source)
		}
		delete(packed, name)
	}
	if len(packed) > 0 {
		t.Errorf("the chart has files without a source: %v", packed)
	}
}

// TestCDI checks with the CDI library of container runtimes that gpusteward install writes a valid device.
func TestCDI(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	library := filepath.Join(dir, "lib")
	install := exec.Command(agent, "install", "--cdi="+dir, "--runtime.dir=/run/gpusteward", library)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir))
	must(t, err)
	container := &specs.Spec{Process: &specs.Process{Env: []string{"LD_PRELOAD=/its/own.so", "PATH=/bin"}}}
	if unknown, err := cache.InjectDevices(container, "gpusteward.dev/hook=hook"); err != nil || len(unknown) > 0 {
		t.Fatalf("%v, unknown: %v, %v", err, unknown, cache.GetErrors())
	}
	if env := container.Process.Env; !slices.Contains(env, "LD_PRELOAD="+filepath.Join(library, "libgpusteward.so")) ||
		slices.Contains(env, "LD_PRELOAD=/its/own.so") || !slices.Contains(env, "PATH=/bin") {
		t.Errorf("environment %q", env)
	}
	var mounted []string
	for _, m := range container.Mounts {
		if m.Source != m.Destination || !slices.Contains(m.Options, "ro") {
			t.Errorf("%+v", m)
		}
		mounted = append(mounted, m.Source)
	}
	slices.Sort(mounted)
	want := []string{library, "/run/gpusteward/broker"}
	slices.Sort(want)
	if !slices.Equal(mounted, want) {
		t.Errorf("mounted: %q, want %q", mounted, want)
	}
}

// TestOwnNodeOnly evaluates the admission policy of the account that reports health.
func TestOwnNodeOnly(t *testing.T) {
	t.Parallel()
	policy := one[admissionv1.ValidatingAdmissionPolicy](t, render(t, "testdata/health.yaml"), "ValidatingAdmissionPolicy")
	binding := one[admissionv1.ValidatingAdmissionPolicyBinding](t, render(t, "testdata/health.yaml"),
		"ValidatingAdmissionPolicyBinding")
	if binding.Spec.PolicyName != policy.Name || len(binding.Spec.ValidationActions) != 1 ||
		binding.Spec.ValidationActions[0] != admissionv1.Deny || *policy.Spec.FailurePolicy != admissionv1.Fail {
		t.Errorf("%+v", binding)
	}
	env, err := cel.NewEnv(cel.Variable("request", cel.DynType), cel.Variable("object", cel.DynType),
		cel.Variable("oldObject", cel.DynType), cel.Variable("variables", cel.DynType))
	must(t, err)
	evaluate := func(expression string, in map[string]any) any {
		t.Helper()
		ast, issues := env.Compile(expression)
		if issues.Err() != nil {
			t.Fatal(issues.Err())
		}
		program, err := env.Program(ast)
		must(t, err)
		out, _, err := program.Eval(in)
		if err != nil {
			return err
		}
		return out.Value()
	}
	// admits evaluates conditions, variables and validations in their order, as the API server does.
	admits := func(in map[string]any) bool {
		t.Helper()
		for _, c := range policy.Spec.MatchConditions {
			if evaluate(c.Expression, in) != true {
				return true // the policy is about others
			}
		}
		variables := map[string]any{}
		in["variables"] = variables
		for _, v := range policy.Spec.Variables {
			variables[v.Name] = evaluate(v.Expression, in)
		}
		for _, v := range policy.Spec.Validations {
			if evaluate(v.Expression, in) != true {
				return false
			}
		}
		return true
	}
	const ours = "system:serviceaccount:gpusteward:gpusteward"
	request := func(user, node, resource, name, operation string) map[string]any {
		info := map[string]any{"username": user}
		if node != "" {
			info["extra"] = map[string]any{"authentication.kubernetes.io/node-name": []any{node}}
		}
		return map[string]any{"userInfo": info, "resource": map[string]any{"resource": resource}, "name": name,
			"operation": operation}
	}
	rule := func(pool string) map[string]any {
		return map[string]any{"spec": map[string]any{"deviceSelector": map[string]any{"pool": pool}}}
	}
	all := map[string]any{"spec": map[string]any{}} // selects every device
	for _, c := range []struct {
		what                 string
		request, object, old map[string]any
		admitted             bool
	}{
		{what: "its node", request: request(ours, "a", "nodes", "a", "UPDATE"), admitted: true},
		{what: "another node", request: request(ours, "a", "nodes", "b", "UPDATE")},
		{what: "a token without a node", request: request(ours, "", "nodes", "a", "UPDATE")},
		{what: "another account", request: request("system:node:b", "", "nodes", "a", "UPDATE"), admitted: true},
		{what: "a rule", request: request(ours, "a", "devicetaintrules", "r", "CREATE"), object: rule("a"), admitted: true},
		{what: "a rule of another node", request: request(ours, "a", "devicetaintrules", "r", "CREATE"), object: rule("b")},
		{what: "a rule for all", request: request(ours, "a", "devicetaintrules", "r", "CREATE"), object: all},
		{what: "its rule", request: request(ours, "a", "devicetaintrules", "r", "DELETE"), old: rule("a"), admitted: true},
		{what: "another's rule", request: request(ours, "a", "devicetaintrules", "r", "DELETE"), old: rule("b")},
	} {
		if got := admits(map[string]any{"request": c.request, "object": c.object, "oldObject": c.old}); got != c.admitted {
			t.Errorf("%s: admitted %v", c.what, got)
		}
	}
	resources := ""
	for _, r := range policy.Spec.MatchConstraints.ResourceRules {
		resources += strings.Join(r.Resources, " ") + " "
	}
	if resources != "nodes/status devicetaintrules " {
		t.Errorf("the policy is about %s", resources)
	}
}
