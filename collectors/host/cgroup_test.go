package host

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"gpusteward/internal/fixture"
)

const (
	id1 = "3f4e1c0b7a6d5e4f3f4e1c0b7a6d5e4f3f4e1c0b7a6d5e4f3f4e1c0b7a6d5e4f"
	id2 = "00000000000000000000000000000000000000000000000000000000000000aa"
	uid = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
	raw = "1b4e28ba_2fa1_11d2_883f_0016d3cca427" // the same in systemd's form
)

// TestParseCgroup holds paths of real hosts: content, key, and other fields that matter.
func TestParseCgroup(t *testing.T) {
	podKey, containerKey := "pod:"+uid+"/"+id1, "container:"+id1
	pods := "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + raw + ".slice/"
	for _, test := range []struct{ content, want string }{
		// Kubernetes
		{pods + "cri-containerd-" + id1 + ".scope", podKey},
		{pods + "crio-" + id1 + ".scope", podKey},
		{pods + "crio-" + id1 + ".scope/container", podKey},
		{pods + "docker-" + id1 + ".scope", podKey},
		{pods + "crio-conmon-" + id1 + ".scope", "pod:" + uid},
		{pods + "cri-containerd-" + id1 + ".scope/kubepods/podffffffffffffffffffffffffffffffff/" + id2, podKey},
		{"0::/kubepods.slice/kubepods-pod" + raw + ".slice/cri-containerd-" + id1 + ".scope", podKey},
		{"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + strings.ReplaceAll(uid, "-", "") +
			".slice/crio-" + id1 + ".scope",
			"pod:" + strings.ReplaceAll(uid, "-", "") + "/" + id1},
		{"0::/kubepods/burstable/pod" + uid + "/" + id1, podKey},
		{"0::/kubepods/pod" + uid + "/" + id1, podKey},
		{"11:devices:/kubepods/besteffort/pod" + uid + "/" + id1 + "\n1:name=systemd:/kubepods/besteffort/pod" + uid +
			"/" + id1 + "\n0::/", podKey},
		{"5:devices:/system.slice/containerd.service/kubepods-burstable-pod" + raw + ".slice:cri-containerd:" + id1,
			podKey},
		{"5:devices:/kubepods-burstable-pod" + raw + ".slice:cri-containerd:" + id1, podKey},
		{"5:devices:/system.slice/snap.microk8s.daemon-containerd.service/kubepods-besteffort-pod" + raw +
			".slice:cri-containerd:" + id1, podKey},
		{"0::/system.slice/k0sworker.service/kubepods/burstable/pod" + uid + "/" + id1, podKey},
		{"0::/system.slice/snap.k8s.kubelet.service/kubepods/pod" + uid + "/" + id1, podKey},
		{"0::/system.slice/snap.docker.dockerd.service/docker/" + id1, containerKey},
		{"0::/system.slice/snap.web.nginx.service/docker/" + id1, "unit:snap.web.nginx.service"},
		{"0::/../../kubepods-besteffort-pod" + raw + ".slice/cri-containerd-" + id1 + ".scope", podKey},
		{"0::/../cri-containerd-" + id1 + ".scope", containerKey},
		{"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + raw + ".slice/cri-containerd-" + id1 +
			".scope", podKey},
		{"0::/docker/" + id1 + "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + raw +
			".slice/cri-containerd-" + id2 + ".scope", containerKey},
		// Docker, Podman, containerd, others
		{"0::/docker/" + id1, containerKey},
		{"0::/system.slice/docker-" + id1 + ".scope", containerKey},
		{"0::/system.slice/docker-" + id1 + ".scope/init.scope", containerKey},
		{"0::/system.slice/docker.service", "unit:docker.service"},
		{"0::/system.slice:docker:" + id1, containerKey},
		{"0::/machine.slice/libpod-" + id1 + ".scope/container", containerKey},
		{"0::/machine.slice/machine-libpod_pod_" + id2 + ".slice/libpod-" + id1 + ".scope", containerKey},
		{"0::/machine.slice/libpod-conmon-" + id1 + ".scope", "unit:libpod-conmon-" + id1 + ".scope"},
		{"0::/libpod_parent/libpod-" + id1, containerKey},
		{"0::/libpod_parent/" + id2 + "/libpod-" + id1, containerKey},
		{"0::/docker/" + id1 + "/libpod_parent/" + id2 + "/libpod-" + id2, containerKey},
		{"0::/system.slice/nerdctl-" + id1 + ".scope", containerKey},
		{"0::/default/" + id1, containerKey},
		{"0::/k8s.io/" + id1, containerKey},
		{"0::/default/trainer", "container:trainer"},
		{"0::/actions_job/" + id1, containerKey},
		{"0::/ecs/0123456789abcdef/" + id1, containerKey},
		{"0::/lxc.payload.web/system.slice/nginx.service", "container:web"},
		{"5:devices:/lxc/web\n1:name=systemd:/lxc/web/init.scope", "container:web"},
		{`0::/machine.slice/machine-qemu\x2d1\x2dvm.scope/libvirt/emulator`, `container:qemu\x2d1\x2dvm`},
		{"0::/machine.slice/systemd-nspawn@box.service/payload/system.slice/sshd.service", "container:box"},
		// Slurm
		{"0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0", "slurm:123.0"},
		{"0::/system.slice/node7_slurmstepd.scope/job_123/step_batch/user/task_0", "slurm:123.batch"},
		{"0::/system.slice/slurmstepd.scope/job_123/step_extern/user/task_special", "slurm:123.extern"},
		{"0::/system.slice/slurmstepd.scope/job_123", "slurm:123"},
		{"0::/system.slice/slurmstepd.scope/system", "unit:slurmstepd.scope"},
		{"5:devices:/slurm/uid_1000/job_123/step_batch/task_0\n4:memory:/slurm/uid_1000/job_123\n" +
			"1:name=systemd:/system.slice/slurmd.service", "slurm:123.batch"},
		{"5:freezer:/slurm_node7/uid_1000/job_123/step_1\n1:name=systemd:/user.slice/user-1000.slice/session-3.scope",
			"slurm:123.1"},
		{"0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0/libpod-" + id1 + ".scope", "slurm:123.0"},
		{"0::/system.slice/slurmstepd.scope/s7QANTV3WPV400/step_0/user/task_0", "slurm:s7QANTV3WPV400.0"},
		{"0::/system.slice/slurmstepd.scope/s7QANTV3Z8H100/step_0+1/user/task_0/docker-" + id1 + ".scope",
			"slurm:s7QANTV3Z8H100.0+1"},
		{"0::/hpc.slice/hpc-jobs.slice/n1_slurmstepd.scope/s7QANTV3WPV400/step_interactive/user/task_special",
			"slurm:s7QANTV3WPV400.interactive"},
		{"0::/hpc.slice/slurmstepd.scope/job_123/step_extern/user/task_0", "slurm:123.extern"},
		{"0::/system.slice/slurmstepd.scope/s7QANTV3WPV400", "slurm:s7QANTV3WPV400"},
		{"0::/system.slice/slurmstepd.scope/later-name/step_batch/user", "slurm:later-name.batch"},
		{"0::/system.slice/slurmstepd.scope/s7QANTV3WPV400/step_0/slurm", "unit:slurmstepd.scope"},
		{"0::/system.slice/slurmstepd.scope/job_123/step_batch/slurm", "unit:slurmstepd.scope"},
		{"0::/docker/" + id1 + "/system.slice/slurmstepd.scope/s7QANTV3WPV400/step_0/user/task_0", containerKey},
		// other batch systems
		{"0::/pbs_jobs.service/jobs/12345.pbs", "job:pbs/12345.pbs"},
		{"5:devices:/pbs_jobs.service/jobid/12[3].pbs1/sub\n1:name=systemd:/system.slice/pbs.service", "job:pbs/12[3].pbs1"},
		{"5:devices:/pbspro.slice/pbspro-12345.pbs.slice", "job:pbs/12345.pbs"},
		{"5:devices:/pbspro/12345.pbs", "job:pbs/12345.pbs"},
		{"0::/pbs_jobs.service/jobs", "unit:pbs_jobs.service"},
		{"0::/system.slice/htcondor/condor_var_lib_condor_execute_slot1_23@node7/x", "job:htcondor/slot1_23@node7"},
		{"5:memory:/htcondor/condor_scratch_slot1", "job:htcondor/slot1"},
		{"0::/htcondor/condor_scratch_backfill1_1@n1", "job:htcondor/backfill1_1@n1"},
		{"5:cpuset:/lsf/c1/job.50.9877.1396900413", "job:lsf/50"},
		{"5:cpuset:/lsf/c1/job.50.3.9877.1396900413", "job:lsf/50.3"},
		{"0::/system.slice/web.service/pbs_jobs.service/jobs/1.pbs", "unit:web.service"},
		{"0::/system.slice/lsfd.service/lsf/c1/job.50.9877.1396900413", "unit:lsfd.service"},
		{"5:cpuset:/torque/123.srv\n1:name=systemd:/system.slice/pbs_mom.service", "unit:pbs_mom.service"},
		// systemd
		{"0::/system.slice/sshd.service", "unit:sshd.service"},
		{"0::/system.slice/system-getty.slice/getty@tty1.service", "unit:getty@tty1.service"},
		{"0::/init.scope", "unit:init.scope"},
		{"0::/system.slice/web.service/sshd.service", "unit:web.service"},
		{"0::/system.slice/web.service/kubepods/pod" + uid + "/" + id1, "unit:web.service"},
		// users
		{"0::/user.slice/user-1000.slice/session-3.scope", "user:1000"},
		{"0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.scope", "user:1000"},
		{"0::/../../user-1000.slice/session-3.scope", "user:1000"},
		{"0::/user.slice/user-1000.slice/user@1000.service/user.slice/docker-" + id1 + ".scope",
			"container:1000/" + id1},
		{"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id1 + ".scope/container",
			"container:1000/" + id1},
		{"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod_parent/" + id2 + "/libpod-" + id1,
			"container:1000/" + id1},
		{"0::/user.slice/user-1000.slice/user@1000.service/kubepods/pod" + uid + "/" + id1, "container:1000/" + id1},
		{"0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/s7QANTV3WPV400/step_0", "user:1000"},
		{"12:cpu:/\n1:name=systemd:/user.slice/user-1000.slice/session-3.scope", "user:1000"},
		{"0::/", "user:7"},
		{"", "user:7"},
		{"nonsense", "user:7"},
		{"0::/mygroup", "user:7"},
	} {
		if got := ParseCgroup(test.content+"\n", 7); got.Key != test.want ||
			!strings.HasPrefix(got.Key, got.Kind+":") || got.UID != 7 {
			t.Errorf("%s\nis  %+v,\nnot %s", test.content, got, test.want)
		}
	}
}

func TestParseCgroupFillsIn(t *testing.T) {
	for content, want := range map[string]Workload{
		"0::/kubepods/pod" + uid + "/" + id1:                   {Kind: KindPod, PodUID: uid, Container: id1, ContainerID: id1},
		"0::/system.slice/slurmstepd.scope/job_12/step_0/user": {Kind: KindSlurm, Job: "12", Step: "0"},
		"0::/system.slice/slurmstepd.scope/s7QANTV3WPV400/step_0/user": {Kind: KindSlurm, Job: "s7QANTV3WPV400", Step: "0",
			SLUID: "s7QANTV3WPV400"},
		"0::/a.slice/a-b.slice/x@1.service": {Kind: KindUnit, Unit: "x@1.service", Slice: "a-b.slice"},
		"0::/user.slice/user-7.slice/user@7.service/app.slice/app-x.scope": {Kind: KindUser, Unit: "app-x.scope",
			Slice: "app.slice", own: true},
	} {
		want.Key, want.UID = ParseCgroup(content, 7).Key, 7
		want.group = want.Key
		fixture.Equal(t, ParseCgroup(content, 7), want, "%s\nis", content)
	}
}

func TestHostileNames(t *testing.T) {
	long := strings.Repeat("é", 200)
	names := []string{"a b.service", "a\x00b.service", "a\x01b.service", "a\xffb.service", "a\xfeb.service",
		"a\u202eb.service", "a\ufffdb.service", "a_b.service",
		"a~b.service", "a_b~0011223344556677.service", long + ".service", long + "x.service", "a\nb.service",
		".service", "\x1b[2J.service"}
	keys := map[string]string{}
	for _, name := range names {
		w := ParseCgroup("0::/system.slice/"+name, 0)
		check(t, w)
		if strings.Contains(name, "\n") {
			continue // the kernel refuses it; here it ends the line
		}
		before, twice := keys[w.Key]
		fixture.If(t, twice, "%q and %q both became %q", before, name, w.Key)
		keys[w.Key] = name
	}
	for _, pair := range [][2]string{{key("container", "1000", "a"), key("container", "1000/a")},
		{key("pod", "a", "b/c"), key("pod", "a/b", "c")}, {key("pod", "a", "b_c"), key("pod", "a", "b/c")}} {
		fixture.Equal(t, pair[0] == pair[1], false, "two names have the key %q", pair[0])
	}
	fixture.Equal(t, field("plain name"), "plain name", "field")
}

// check fails if a field of w could not be shown, or breaks a promise.
func check(t *testing.T, w Workload) {
	t.Helper()
	fixture.Equal(t, !strings.HasPrefix(w.Key, w.Kind+":") || w.Kind == "", false, "key %q of kind %q", w.Key, w.Kind)
	for _, s := range []string{w.Key, w.Kind, w.Namespace, w.Pod, w.PodUID, w.Container, w.ContainerID, w.Image, w.Unit,
		w.Slice, w.Job, w.Step, w.SLUID, w.User, w.Account, w.Partition} {
		fixture.If(t, len(s) > longest || !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl),
			"%q in %+v", s, w)
	}
}

func FuzzCgroup(f *testing.F) {
	f.Add("0::/kubepods/burstable/pod"+uid+"/%s", "a", "b")
	f.Add("0::/user.slice/user-1000.slice/kubepods/pod"+uid+"/x", "", "")
	f.Add("5:devices:/slurm/uid_1000/job_1/step_0\n1:name=systemd:/a.slice/b@c.service", "\xff", "\n")
	f.Add("0::/../../system.slice:docker:"+id1, "~", "")
	f.Fuzz(func(t *testing.T, content, a, b string) {
		w := ParseCgroup(content, 5)
		check(t, w)
		fixture.Equal(t, ParseCgroup(content, 5), w, "the same input gave two results")
		below := "0::/user.slice/" + strings.ReplaceAll(content, "\n", "/")
		if w := ParseCgroup(below, 5); w.Kind != KindUser && (w.Kind != KindContainer || !w.own) {
			t.Errorf("below user.slice there is a %s %q", w.Kind, w.Key)
		}
		inside := "0::/docker/" + id1 + "/" + strings.ReplaceAll(content, "\n", "/")
		fixture.Equal(t, ParseCgroup(inside, 5).Key, "container:"+id1, "in a container there is")
		fixture.If(t, a != b && (key("unit", a) == key("unit", b) || field(a) == field(b)),
			"%q and %q have the same workload", a, b)
	})
}

var cgroups = flag.Int("cgroups", 30_000, "random cgroups to parse")

// TestRandomCgroups parses paths from a grammar of cgroup names: the parser
// finds every container, and nothing less specific.
func TestRandomCgroups(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	hex := func() string { return fmt.Sprintf("%064x", random.Uint64()) }
	piece := []func() string{
		func() string { return "system.slice" }, func() string { return "user.slice" },
		func() string { return "user-1000.slice" },
		func() string { return "user@1000.service" }, func() string { return "kubepods" },
		func() string { return "kubepods.slice" },
		func() string { return "kubepods-pod" + raw + ".slice" }, func() string { return "pod" + uid },
		func() string { return "cri-containerd-" + hex() + ".scope" },
		func() string { return "docker-" + hex() + ".scope" }, hex,
		func() string { return "crio-conmon-" + hex() + ".scope" },
		func() string { return "slurm" }, func() string { return "slurmstepd.scope" },
		func() string { return "uid_1000" },
		func() string { return fmt.Sprint("job_", random.IntN(9)) }, func() string { return "pbs_jobs.service" },
		func() string { return fmt.Sprint("step_", random.IntN(9)) }, func() string { return "12.pbs" },
		func() string { return "lxc.payload.x" }, func() string { return "x\xff~.service" },
		func() string { return ".." }, func() string { return "" },
		func() string { return "a.slice:cri-containerd:" + hex() },
		func() string { return strings.Repeat("long", random.IntN(64)) + ".scope" },
	}
	kinds := map[string]int{}
	raws := map[string]string{} // containers by key
	for range *cgroups {
		var path strings.Builder
		for range random.IntN(7) {
			path.WriteString("/" + piece[random.IntN(len(piece))]())
		}
		w := ParseCgroup(fmt.Sprintf("%d:devices:%s\n", random.IntN(12), path.String()), 5)
		check(t, w)
		kinds[w.Kind]++
		if before, ok := raws[w.Key]; w.ContainerID != "" && ok && before != w.ContainerID {
			t.Fatalf("containers %s and %s both became %s", before, w.ContainerID, w.Key)
		}
		raws[w.Key] = w.ContainerID
		fixture.Stop(t, strings.HasPrefix(path.String(), "/user.slice") && (w.Kind == KindPod || w.Kind == KindSlurm),
			"%s is %s", path.String(), w.Key)
	}
	fixture.Equal(t, len(kinds), 6, "kinds %v", kinds)
}
