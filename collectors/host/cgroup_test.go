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

// TestParseCgroup holds the keys in testdata/cgroups.tsv.
func TestParseCgroup(t *testing.T) {
	names := strings.NewReplacer("{id1}", id1, "{id2}", id2, "{uid}", uid, "{raw}", raw, "{bare}",
		strings.ReplaceAll(uid, "-", ""), `\n`, "\n")
	for _, row := range fixture.Rows(t, "testdata/cgroups.tsv") {
		want, content := names.Replace(row[0]), names.Replace(strings.Join(row[1:], ""))
		if got := ParseCgroup(content+"\n", 7); got.Key != want ||
			!strings.HasPrefix(got.Key, got.Kind+":") || got.UID != 7 {
			t.Errorf("%s\nis  %+v,\nnot %s", content, got, want)
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
