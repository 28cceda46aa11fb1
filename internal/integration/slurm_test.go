package integration

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// A slurmd runs deploy/slurm's scripts as Slurm's daemon does, on a node7 with a scontrol and a squeue of the test.
type slurmd struct {
	t   *testing.T
	bin string // of scontrol, squeue and logger
	run string // /run/gpusteward
	env []string
}

func newSlurmd(t *testing.T) *slurmd {
	dir := t.TempDir()
	s := &slurmd{t: t, bin: filepath.Join(dir, "bin"), run: filepath.Join(dir, "run")}
	s.env = []string{"PATH=" + s.bin + ":" + os.Getenv("PATH"), "DIR=" + dir, "GPUSTEWARD_RUN=" + s.run,
		"GPUSTEWARD_SLURM_CONF=" + dir + "/ours.conf", "SLURM_CONF=" + dir + "/slurm.conf", "SLURMD_NODENAME=node7"}
	for name, script := range map[string]string{
		"logger": `shift 4; echo "$*" >>"$DIR/logged"`,
		"squeue": `cat "$DIR/squeue"`,
		"scontrol": `case "$*" in
*"show job 7") cat "$DIR/job" ;;
"show config") cat "$DIR/config" ;;
*"show node node7") cat "$DIR/node" ;;
"show hostnames node[6-7]") printf 'node6\nnode7\n' ;;
"show hostnames "*) echo "$3" ;;
*) exit 1 ;;
esac`,
	} {
		s.put("bin/"+name, "#!/bin/sh\n"+script+"\n")
	}
	return s
}

func (s *slurmd) path(name string) string { return filepath.Join(filepath.Dir(s.bin), name) }

func (s *slurmd) put(name, text string) {
	s.t.Helper()
	fixture.Must(s.t, os.MkdirAll(filepath.Dir(s.path(name)), 0o755))
	fixture.Program(s.t, s.path(name), text)
}

// read returns the text of a file, or its name if there is none.
func (s *slurmd) read(name string) string {
	text, err := os.ReadFile(s.path(name))
	if err != nil {
		return "no " + name
	}
	return string(text)
}

// script runs one of the scripts and returns its output. The script must
// succeed in every case: otherwise Slurm would drain the node.
func (s *slurmd) script(name string, env ...string) string {
	s.t.Helper()
	path := fixture.Value(filepath.Abs("deploy/slurm/" + name))(s.t)
	cmd := exec.Command(path)
	cmd.Env = slices.Concat(s.env, env)
	out, err := cmd.CombinedOutput()
	fixture.If(s.t, err != nil, "%s: %v\n%s", name, err, out)
	return string(out)
}

var job7 = []string{"SLURM_JOB_ID=7", "SLURM_JOB_USER=ada", "SLURM_JOB_UID=1000", "SLURM_JOB_ACCOUNT=lab",
	"SLURM_JOB_PARTITION=gpu", "SLURM_JOB_GPUS=0"}

func TestPrologWritesARecord(t *testing.T) {
	t.Parallel()
	s := newSlurmd(t)
	s.put("slurm.conf", "GresTypes=gpu\n")
	if said := s.script("prolog.sh", job7...); said != "" || s.read("logged") != "no logged" {
		t.Errorf("it says %q and logs %q", said, s.read("logged"))
	}
	fixture.Equal(t, s.read("run/slurm/7"), "JOB=7\nUSER=ada\nUID=1000\nACCOUNT=lab\nPARTITION=gpu\nGPUS=0\n",
		"the record is")
	fixture.Equal(t, s.read("run/tenants.d/slurm-7.yml"), "no run/tenants.d/slurm-7.yml",
		"without shards it has a quota")
	if info, err := os.Stat(s.path("run/slurm/7")); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info.Mode(), err)
	}

	// Text of the user adds no line.
	s.script("prolog.sh", "SLURM_JOB_ID=8", "SLURM_JOB_USER=eve", "SLURM_JOB_ACCOUNT=x\nUSER=root\nGPUS=0,1",
		"SLURM_JOB_PARTITION=$(reboot)`id`")
	fixture.Equal(t, s.read("run/slurm/8"),
		"JOB=8\nUSER=eve\nUID=\nACCOUNT=x?USER=root?GPUS=0,1\nPARTITION=$(reboot)`id`\nGPUS=\n", "the record is")
	s.script("prolog.sh", "SLURM_JOB_ID=../../x")
	fixture.Contains(t, s.read("logged"), "Slurm did not start this", "for an invalid number the program logs")
	s.script("prolog.sh", "SLURM_JOB_ID=9", "SLURM_JOB_SLUID=s7QANTV3WPV400")
	text := s.read("run/slurm/s7QANTV3WPV400")
	fixture.If(t, text != s.read("run/slurm/9") ||
		!strings.HasSuffix(text, "SLUID=s7QANTV3WPV400\n"), "the record of the SLUID is %s", text)
	s.script("prolog.sh", "SLURM_JOB_ID=10", "SLURM_JOB_SLUID=../9")
	fixture.Equal(t, s.script("epilog.sh", "SLURM_JOB_ID=9"), "", "the epilog says")
	left := fixture.Value(os.ReadDir(s.path("run/slurm")))(t)
	fixture.Equal(t, fmt.Sprint(left), "[- 10 - 7 - 8]", "after job 9 there are")
	s.script("epilog.sh", job7...)
	fixture.Equal(t, s.read("run/slurm/7"), "no run/slurm/7", "after the job there is")
}

// Whether GPUs have shards is told by Slurm's files as Slurm reads them, and by Slurm.
func TestPrologKnowsSlurmsFiles(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		conf, site, config string
		none, late         bool // there are no shards; Slurm's answer takes too long
		logged             string
	}{
		"direct":                  {conf: "gresTypes=gpu,shard\n"},
		"indented":                {conf: "ClusterName=x\n\t GresTypes\t=  GPU,Shard # both\n"},
		"continued":               {conf: "GresTypes=gpu\\ \n,sha\\\nrd\n"},
		"quoted":                  {conf: "GresTypes=\"gpu,shard\"\r\n"},
		"included":                {conf: "Include slurm_site.conf\n", site: "GresTypes=gpu,shard\n"},
		"included by cluster":     {conf: "ClusterName=Slurm\ninclude\t%c_site.conf # the site\n", site: "GresTypes=gpu,shard"},
		"included twice":          {conf: "include slurm_site.conf\nGresTypes=gpu,shard\ninclude slurm.conf\n", site: "ClusterName=x"},
		"the last counts":         {conf: "GresTypes=gpu,shard\ninclude slurm_site.conf\n", site: "GresTypes=gpu", none: true},
		"a comment":               {conf: "#GresTypes=gpu,shard\nGresTypes=gpu # ,shard\n", none: true},
		"of another key":          {conf: "NodeName=node7 GresTypes=shard\nXGresTypes=shard\n", none: true},
		"only Slurm knows":        {conf: "include none.conf\n", config: "Name = x\nGresTypes               = gpu,shard\n"},
		"a cluster without files": {config: "GresTypes               = gpu,shard\n"},
		"Slurm knows of none":     {config: "GresTypes               = gpu\n", none: true},
		"Slurm is late":           {config: "GresTypes = gpu,shard\n", late: true, none: true, logged: "neither slurm.conf nor"},
		"nobody knows":            {none: true, logged: "neither slurm.conf nor Slurm says"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSlurmd(t)
			for file, text := range map[string]string{"slurm.conf": c.conf, "slurm_site.conf": c.site, "config": c.config,
				"job": "Nodes=node7 CPU_IDs=0 GRES=shard:2(IDX:0)\n", "node": "Gres=gpu:2,shard:8\n"} {
				if text != "" {
					s.put(file, text)
				}
			}
			if c.late {
				s.put("bin/timeout", "#!/bin/sh\n[ \"$1 $2\" != '3 scontrol' ] || exit 124\nshift 3; exec \"$@\"\n")
			}
			s.script("prolog.sh", append(slices.Clone(job7), "SLURM_JOB_SLUID=s7QANTV3WPV400")...)
			const want = `"slurm:7", "slurm:7.*", "slurm:s7QANTV3WPV400", "slurm:s7QANTV3WPV400.*"`
			text := s.read("run/tenants.d/slurm-7.yml")
			fixture.If(t, c.none != strings.HasPrefix(text, "no ") || !c.none && (!strings.Contains(text, want) ||
				!strings.Contains(text, "guarantee: 50.00 %")), "the quota is %s", text)
			fixture.Contains(t, s.read("logged"), cmp.Or(c.logged, "no logged"), "it logs")
		})
	}
}

// Slurm's grant is a quota that the configuration accepts.
func TestPrologGivesShards(t *testing.T) {
	t.Parallel()
	const node = "NodeName=node7 Gres=gpu:h100:2,shard:h100:8 GresDrain=N/A GresUsed=x\n"
	job := func(name, gres string) string {
		return "JobId=7 JobName=" + name + " JOB_GRES=shard:9 Nodes=node5 CPU_IDs=0 Mem=0 GRES=shard:4(IDX:1) Nodes=node[6-7] CPU_IDs=0 " +
			"Mem=0 GRES=" + gres + " MinCPUsNode=1\n"
	}
	for name, c := range map[string]struct {
		gpus, node, gres, ours, called string
		want                           []string // of --explain
	}{
		"shards": {gres: "shard:h100:3(IDX:1)", gpus: "1",
			want: []string{"on GPU 1: guarantee 75 %, limit 75 %, priority normal", "memory 75 % of the GPU's",
				"on every other GPU: guarantee 0 %, limit 1 %", "memory 1 MiB", "cannot ask for another"}},
		"untyped": {gres: "shard:1(IDX:0)", gpus: "0", node: "NodeName=node7 Gres=gpu:4(S:0-1),shard:12\n",
			want: []string{"on GPU 0: guarantee 33.33 %, limit 33.33 %"}},
		"of GPUs at sockets": {gres: "shard:4(IDX:2)", gpus: "2",
			node: "NodeName=node7 Gres=gpu:a100:4(S:1,3,5,7),shard:a100:32(S:1,3,5,7)\n", want: []string{"on GPU 2: guarantee 50 %"}},
		"a name like a grant": {gres: "shard:h100:1(IDX:1)", gpus: "1", called: "x Nodes=node7 GRES=shard:h100:4(IDX:1)",
			want: []string{"on GPU 1: guarantee 25 %"}},
		"a name like an endless one": {gres: "shard:h100:1(IDX:1)", gpus: "1",
			called: "x Nodes=node7 GRES=shard:4096(IDX:0-999999999)", want: []string{"on GPU 1: guarantee 25 %"}},
		"a name like half of one": {gres: "shard:h100:1(IDX:1)", gpus: "1", called: "x GRES=y Nodes=node7",
			want: []string{"on GPU 1: guarantee 25 %"}},
		"by the thousand": {gres: "shard:1K(IDX:0)", gpus: "0", node: "NodeName=node7 Gres=gpu,shard:2K\n",
			want: []string{"on GPU 0: guarantee 50 %"}},
		"of no type": {gres: "gpu:(null):1(IDX:0),shard:(null):3(3/4,0/4)", gpus: "0", want: []string{"on GPU 0: guarantee 75 %"}},
		"of several GPUs": {gres: "gpu:h100:1(IDX:1),shard:h100:6(3/4,1/4,2/4)", gpus: "0,1,2",
			want: []string{"on GPU 0: guarantee 75 %", "on GPU 1: guarantee 25 %", "on GPU 2: guarantee 50 %"}},
		"of GPUs that are a set": {gres: "shard:h100:5(IDX:0-1,3)", gpus: "0,1,3",
			want: []string{"on GPU 0, 1, 3: guarantee 41.66 %"}},
		"more than there are": {gres: "shard:h100:9(IDX:0)", gpus: "0", want: []string{"on GPU 0: guarantee 100 %"}},
		"our number of shards": {gres: "shard:h100:3(IDX:1)", gpus: "1", ours: "shards=12\n",
			want: []string{"on GPU 1: guarantee 25 %"}},
		"our terms": {gres: "shard:h100:2(IDX:1)", gpus: "1",
			ours: "tenant='priority: low, ladder: {mode: pause}'\nquota() { [ -z \"$part\" ] || echo \"guarantee: " +
				"$part, memory: 10 GiB, limit: 100 %\"; }\n", want: []string{"on GPU 1: guarantee 50 %, limit 100 %, " +
				"priority low", "memory 10 GiB", "ladder: up to pause"}},
		"our terms of a GPU": {gres: "gpu:h100:1(IDX:0)", gpus: "0",
			ours: "quota() { case $SLURM_JOB_PARTITION in gpu) echo 'limit: 40 %' ;; esac; }\n",
			want: []string{"on GPU 0: guarantee 0 %, limit 40 %"}},
		"the page's terms": {gres: "shard:h100:2(IDX:1)", gpus: "1", ours: example(t),
			want: []string{"on GPU 1: guarantee 50 %, limit 100 %, priority low", "memory 50 % of the GPU's",
				"ladder: up to pause\n"}},
		"the page's partition": {gres: "gpu:h100:1(IDX:1)", gpus: "1",
			ours: "SLURM_JOB_PARTITION=interactive\n" + example(t),
			want: []string{"on GPU 1: guarantee 0 %, limit 50 %", "memory 20 GiB"}},
		"a whole GPU": {gres: "gpu:h100:1(IDX:0)", gpus: "0"},
		"nothing":     {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSlurmd(t)
			s.put("slurm.conf", "ClusterName=x\nGresTypes=gpu,shard\n")
			s.put("job", job(c.called, c.gres))
			s.put("node", node)
			if c.node != "" {
				s.put("node", c.node)
			}
			if c.ours != "" {
				s.put("ours.conf", c.ours)
			}
			s.script("prolog.sh", append(slices.Clone(job7), "SLURM_JOB_GPUS="+c.gpus)...)
			fixture.Equal(t, s.read("logged"), "no logged", "it logs")
			text := s.read("run/tenants.d/slurm-7.yml")
			if c.want == nil {
				fixture.Equal(t, strings.HasPrefix(text, "no run/"), true, "it has a quota: %s", text)
				return
			}
			out := s.explain(text)
			for _, want := range append(c.want, "so it belongs to slurm-7") {
				fixture.Contains(t, out, want, "of %s it says", text)
			}
			s.script("epilog.sh", job7...)
			fixture.Equal(t, s.read("run/tenants.d/slurm-7.yml"), "no run/tenants.d/slurm-7.yml",
				"after the job it has a quota")
		})
	}
}

// example returns the /etc/gpusteward/slurm.conf of docs/slurm.md.
func example(t *testing.T) string {
	t.Helper()
	page := content(t, "docs/slurm.md")
	_, text, found := strings.Cut(page, "```sh\n")
	text, _, _ = strings.Cut(text, "```")
	fixture.Stop(t, !found, "there is none")
	return text
}

// explain explains a file of tenants for a process of the job. This process is
// in no job, so it takes the job's place with its own workload.
func (s *slurmd) explain(text string) string {
	s.t.Helper()
	s.put("run/tenants.d/slurm-7.yml", regexp.MustCompile(`workloads: \["slurm:7", "slurm:7\.\*"\]`).
		ReplaceAllString(text, fmt.Sprintf("users: [%d]", os.Getuid())))
	fixture.Contains(s.t, text, `"slurm:7.*"`, "it is not for the job")
	s.put("gpusteward.yml", fmt.Sprintf("enforcer: {tenants_dirs: [%s/tenants.d]}\n", s.run))
	status, out, errors := check(s.t, s.path("gpusteward.yml"), fmt.Sprint("--explain=", os.Getpid()))
	fixture.Equal(s.t, status, 0, "status …, %s\n%s", errors, text)
	return out
}

// A job whose cgroup has its SLUID as its name belongs to the tenant of its
// number, which root's slurmstepd tells, whatever its user claims.
func TestTheTenantOfASLUID(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const group = "/jobs.slice/slurmstepd.scope/s7QANTV3WPV400/step_0/"
	for pid, c := range map[int]struct {
		uid          int
		group, title string
	}{7: {1000, group + "user/task_0", "slurmstepd: [4712.0]"}, 8: {0, group + "slurm", "slurmstepd: [4711.0]"}} {
		for file, text := range map[string]string{"sys/fs/cgroup" + c.group + "/cgroup.procs": fmt.Sprintln(pid),
			"proc/stat": "btime 1700000000\n", fmt.Sprintf("proc/%d/cgroup", pid): "0::" + c.group + "\n",
			fmt.Sprintf("proc/%d/stat", pid):    fmt.Sprintf("%d (x) S", pid) + strings.Repeat(" 0", 50) + "\n",
			fmt.Sprintf("proc/%d/status", pid):  fmt.Sprintf("Name:\tx\nUid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", c.uid),
			fmt.Sprintf("proc/%d/environ", pid): "SLURM_JOB_ID=4712\x00", fmt.Sprintf("proc/%d/cmdline", pid): c.title} {
			fixture.Rewrite(t, filepath.Join(dir, file), text)
		}
	}
	config := fixture.Config(t, "enforcer: {tenants: [{name: mine, select: [{workloads: ['slurm:4711.*']}]}, "+
		"{name: other, select: [{workloads: ['slurm:4712.*']}]}]}\n")
	_, out, errs := check(t, config, "--explain=7", "--path.procfs="+dir+"/proc", "--path.sysfs="+dir+"/sys")
	fixture.Contains(t, out, "so it belongs to mine\n", "%s: it says", errs)
	fixture.Contains(t, out, "workload: slurm:4711.0, a slurm; job 4711; step 0", "it says")
}

// The prolog succeeds within its time in every case, and logs what is wrong.
func TestPrologNeverFailsAJob(t *testing.T) {
	t.Parallel()
	limit := fixture.Value(exec.LookPath("timeout"))(t)
	tests := map[string]func(t *testing.T){}
	for name, c := range map[string]struct {
		ours, slurm string
		logged      string
	}{
		"Slurm does not answer":     {slurm: "exit 1", logged: "Slurm does not say how many shards it has"},
		"Slurm hangs":               {slurm: ": >$DIR/hangs; exec sleep 1000", logged: "it failed, or took longer than 10 s"},
		"ours is no shell":          {ours: "quota() {\n", logged: "it failed"},
		"ours ends":                 {ours: "exit 3\n", logged: "it failed"},
		"ours is about nothing":     {ours: "nothing\n", logged: "not found"},
		"nothing can be written":    {logged: "cannot be written"},
		"nobody takes what it logs": {slurm: "exit 1"},
	} {
		tests[name] = func(t *testing.T) {
			s := newSlurmd(t)
			s.put("slurm.conf", "GresTypes=gpu,shard\n")
			s.put("job", "")
			if name == "Slurm hangs" { // a limit of 10 s ends then
				s.put("bin/timeout", "#!/bin/sh\n[ \"$1 $2 $3\" = '-k 1 10' ] && shift 3 || exit 1\n"+limit+" -k 1 600 \"$@\" &\n"+
					"until [ -e \"$DIR/hangs\" ]; do sleep .01; done; kill $!; wait $!; exit 124\n")
			}
			if c.slurm != "" {
				s.put("bin/scontrol", "#!/bin/sh\n"+c.slurm+"\n")
			}
			if c.ours != "" {
				s.put("ours.conf", c.ours)
			}
			switch name {
			case "nothing can be written":
				s.put("run", "a file\n")
			case "nobody takes what it logs":
				s.put("bin/logger", "#!/bin/sh\nexit 1\n")
			}
			s.script("prolog.sh", job7...)
			fixture.Contains(t, s.read("logged"), c.logged, "it logs")
			if got := s.read("run/slurm/7"); name != "nothing can be written" && !strings.HasPrefix(got, "JOB=7\n") {
				t.Errorf("there is %s", got)
			}
		}
	}
	together(t, tests)
}

// Files that a killed epilog left are removed when they are a day old and Slurm
// no longer knows the job, but not if Slurm does not answer.
func TestEpilogRemovesStaleRecords(t *testing.T) {
	t.Parallel()
	s := newSlurmd(t)
	files := []string{"run/slurm/1", "run/tenants.d/slurm-1.yml", "run/slurm/2", "run/tenants.d/slurm-2.yml",
		"run/slurm/3", "run/slurm/.4.new", "run/tenants.d/site.yml"}
	for _, name := range files {
		s.put(name, "x\n")
		if name != "run/slurm/3" { // is from today
			fixture.Must(t, os.Chtimes(s.path(name), time.Now(), time.Now().Add(-25*time.Hour)))
		}
	}
	left := func() (all []string) {
		for _, name := range files {
			if _, err := os.Stat(s.path(name)); err == nil {
				all = append(all, name)
			}
		}
		return all
	}
	s.put("bin/squeue", "#!/bin/sh\nexit 1\n")
	if s.script("epilog.sh", "SLURM_JOB_ID=9"); len(left()) != len(files) {
		t.Errorf("Slurm does not answer, and there are only %q", left())
	}
	s.put("bin/squeue", "#!/bin/sh\necho \"$@\" >>\"$DIR/asked\"; printf '2\\n22\\n'\n")
	s.script("epilog.sh", "SLURM_JOB_ID=9")
	fixture.Equal(t, fmt.Sprint(left()), "[run/slurm/2 run/tenants.d/slurm-2.yml run/slurm/3 run/tenants.d/site.yml]",
		"there are")
	s.script("epilog.sh", "SLURM_JOB_ID=9")
	fixture.Equal(t, s.read("asked"), "--noheader --nodelist=node7 --format=%A\n", "Slurm is asked")
}

// Only jobs with GPUs get the hook, if there are a hook and a broker.
func TestTaskPrologPreloadsTheHook(t *testing.T) {
	t.Parallel()
	s := newSlurmd(t)
	dir := fixture.ShortDir(t)
	library, socket := filepath.Join(dir, "libgpusteward.so"), filepath.Join(dir, "broker.sock")
	env := func(more ...string) []string {
		return append([]string{"GPUSTEWARD_LIBRARY=" + library, "GPUSTEWARD_SOCKET=" + socket}, more...)
	}
	fixture.Equal(t, s.script("taskprolog.sh", env("SLURM_JOB_GPUS=0")...), "", "without a hook")
	const other = "/lib/x86_64-linux-gnu/libm.so.6" // a file that the loader can load
	text := content(t, other)
	fixture.Rewrite(t, library, text)
	fixture.Equal(t, s.script("taskprolog.sh", env("SLURM_JOB_GPUS=0")...), "", "without a broker")
	listener := fixture.Value(net.Listen("unix", socket))(t)
	defer listener.Close()
	for want, more := range map[string][]string{
		"":                                    nil,
		"export LD_PRELOAD=" + library + "\n": {"SLURM_JOB_GPUS=0"},
		"export LD_PRELOAD=" + library + ":" + other + "\n": {"CUDA_VISIBLE_DEVICES=0", "LD_PRELOAD=" + other},
	} {
		fixture.Equal(t, s.script("taskprolog.sh", env(more...)...), want, "%q", more)
	}
	fixture.Equal(t, s.script("taskprolog.sh", env("SLURM_JOB_GPUS=0", "LD_PRELOAD="+library)...), "",
		"a step of a job that has it")
}
