//go:build deploy

// Package slurm tests the scripts for Slurm with a real Slurm.
package slurm

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// A cluster is a Slurm with one node, in a directory of its own, on this host's loopback. The
// node has two GPUs with four shards each, which are copies of /dev/null.
type cluster struct {
	t       *testing.T
	dir     string
	env     []string
	cgroups bool // whether jobs have cgroups
}

const patience = 2 * time.Minute // bounds a hang

// eventually waits for a condition.
func (c *cluster) eventually(what string, is func() bool) {
	c.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("not within %v: %s\n%s", patience, what, c.logs())
		}
	}
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

// read returns the text of a file, or "".
func (c *cluster) read(name string) string {
	text, _ := os.ReadFile(c.path(name))
	return string(text)
}

func (c *cluster) there(name string) bool {
	_, err := os.Stat(c.path(name))
	return err == nil
}

func (c *cluster) write(name, text string) {
	c.t.Helper()
	fixture.Program(c.t, c.path(name), text)
}

// logs returns the end of each daemon's log.
func (c *cluster) logs() string {
	var all strings.Builder
	for _, name := range []string{"slurmctld.log", "slurmd.log", "agent.log"} {
		text := c.read(name)
		fmt.Fprintf(&all, "%s:\n%s\n", name, text[max(0, len(text)-3000):])
	}
	return all.String()
}

// command returns the output of a command, which must succeed.
func (c *cluster) command(name string, args ...string) string {
	c.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Dir = c.env, c.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("%s %q: %v\n%s\n%s", name, args, err, out, c.logs())
	}
	return strings.TrimSpace(string(out))
}

// daemon starts a program, which ends with the test.
func (c *cluster) daemon(log string, name string, args ...string) *exec.Cmd {
	c.t.Helper()
	file := fixture.Value(os.Create(c.path(log)))(c.t)
	defer file.Close()
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = c.env, c.dir, file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	fixture.Must(c.t, cmd.Start())
	c.t.Cleanup(func() { c.end(cmd) })
	return cmd
}

// end stops a daemon. It may be called more than once.
func (c *cluster) end(cmd *exec.Cmd) {
	if cmd.ProcessState != nil {
		return
	}
	_ = cmd.Process.Signal(syscall.SIGTERM)
	kill := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait() // reports the signal
	kill.Stop()
}

// newCluster starts Slurm.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("slurmd runs as root")
	}
	dir, err := os.MkdirTemp("/tmp", "slurm") // other users cannot read t.TempDir, and it is too long for a socket
	fixture.Must(t, err)
	t.Cleanup(func() { // jobs end without the directory, and then their cgroups can be removed
		os.RemoveAll(dir)
		groups, end := "/sys/fs/cgroup/freezer/slurm_"+filepath.Base(dir), time.Now().Add(patience)
		for !sweep(groups) && time.Now().Before(end) {
			time.Sleep(20 * time.Millisecond)
		}
	})
	c := &cluster{t: t, dir: dir, env: append(os.Environ(),
		"SLURM_CONF="+dir+"/slurm.conf", "PATH="+dir+"/bin:"+os.Getenv("PATH")+":/usr/sbin")}
	for name, mode := range map[string]os.FileMode{
		"": 0o755, "bin": 0o755, "state": 0o755, "spool": 0o755, "out": 0o777, "lib": 0o755,
	} {
		fixture.Must(t, os.MkdirAll(c.path(name), 0o755))
		fixture.Must(t, os.Chmod(c.path(name), mode))
	}
	if out, err := exec.Command("cp", "../../gpusteward", c.path("bin/")).CombinedOutput(); err != nil {
		t.Fatalf("%s: run make build", out)
	}
	scripts := fixture.Value(filepath.Abs("."))(t)
	// Slurm runs its scripts in an environment of its own, so a wrapper around each script sets
	// this cluster's variables.
	for script, before := range map[string]string{
		"prolog": "", "epilog": "", "taskprolog": "",
		"healthcheck": fmt.Sprintf("[ -e %s/sick ] || exit 0\nset -- --standalone --demo=%s/lost.yml\n", dir, dir),
	} {
		c.write(script, fmt.Sprintf("#!/bin/sh\n"+
			"export PATH=%[1]s/bin:/usr/bin:/bin:/usr/sbin SLURM_CONF=%[1]s/slurm.conf"+
			" GPUSTEWARD_RUN=%[1]s/run GPUSTEWARD_SLURM_CONF=%[1]s/ours.conf"+
			" GPUSTEWARD_LIBRARY=%[1]s/lib/libgpusteward.so GPUSTEWARD_SOCKET=%[1]s/run/b/broker.sock\n"+
			"%[2]sexec %[3]s/%[4]s.sh \"$@\"\n", dir, before, scripts, script))
	}
	c.write("lost.yml", "name: test\ndoc: A host.\ngpus: [{model: h100, load: idle, count: 2}]\n"+
		"faults: [{at: 0s, gpu: 1, kind: lost}]\n")
	c.write("two.yml", "name: test\ndoc: A host.\ngpus: [{model: h100, load: training, count: 2}]\n")
	c.configure()
	return c
}

// configure writes Slurm's configuration and starts its daemons.
func (c *cluster) configure() {
	host, err := os.Hostname()
	fixture.Must(c.t, err)
	host, _, _ = strings.Cut(host, ".")
	track := "linuxproc"
	if probe := "/sys/fs/cgroup/freezer/" + filepath.Base(c.dir); os.Mkdir(probe, 0o755) == nil {
		c.cgroups, track = os.Remove(probe) == nil, "cgroup"
	}
	c.write("cgroup.conf", "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n")
	port := func() string { return strings.TrimPrefix(fixture.FreeAddress(c.t), "127.0.0.1:") }
	c.write("slurm.conf", fmt.Sprintf(`ClusterName=test
SlurmctldHost=%[2]s(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=%[1]s/munge.sock
SlurmctldPort=%[4]s
SlurmdPort=%[5]s
StateSaveLocation=%[1]s/state
SlurmdSpoolDir=%[1]s/spool
SlurmctldPidFile=%[1]s/slurmctld.pid
SlurmdPidFile=%[1]s/slurmd.pid
CommunicationParameters=NoCtldInAddrAny
ProctrackType=proctrack/%[6]s
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu,shard
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
PrologFlags=Alloc
Prolog=%[1]s/prolog
Epilog=%[1]s/epilog
TaskProlog=%[1]s/taskprolog
HealthCheckProgram=%[1]s/healthcheck
HealthCheckInterval=1
HealthCheckNodeState=ANY
NodeName=%[3]s NodeAddr=127.0.0.1 NodeHostname=%[2]s CPUs=8 Gres=gpu:h100:2,shard:8 State=UNKNOWN
PartitionName=gpu Nodes=%[3]s Default=YES MaxTime=INFINITE State=UP
`, c.dir, host, filepath.Base(c.dir), port(), port(), track))
	c.write("gres.conf", "Name=gpu Type=h100 File="+c.path("gpu[0-1]")+"\nName=shard Count=8\n")
	for _, gpu := range []string{"gpu0", "gpu1"} {
		fixture.Must(c.t, syscall.Mknod(c.path(gpu), syscall.S_IFCHR|0o666, 1<<8|3))
	}
	fixture.Must(c.t, os.WriteFile(c.path("munge.key"), bytes.Repeat([]byte("gpusteward"), 100), 0o600))
	c.daemon("munged.log", "munged", "--foreground", "--force", "--socket="+c.path("munge.sock"),
		"--key-file="+c.path("munge.key"), "--pid-file="+c.path("munged.pid"), "--seed-file="+c.path("munge.seed"))
	c.eventually("munged listens", func() bool { return c.there("munge.sock") })
	c.daemon("slurmctld.log", "slurmctld", "-D", "-c")
	c.daemon("slurmd.log", "slurmd", "-D", "-N", filepath.Base(c.dir))
	c.eventually("the node is idle", func() bool {
		cmd := exec.Command("sinfo", "--noheader", "--format=%T")
		cmd.Env = c.env
		out, err := cmd.Output()
		return err == nil && strings.TrimSpace(string(out)) == "idle"
	})
}

// sweep removes the cgroups that slurmd leaves behind, and reports whether all are gone.
func sweep(root string) bool {
	var groups []string
	for _, pattern := range []string{"/*/*/*", "/*/*", "/*", ""} {
		more, _ := filepath.Glob(root + pattern) // the pattern is valid
		groups = append(groups, more...)
	}
	for _, g := range groups {
		_ = os.Remove(g) // fails while it is in use
	}
	_, err := os.Stat(root)
	return err != nil
}

// job submits a job, which writes its environment to a file and ends when the file go appears.
func (c *cluster) job(args ...string) (id string) {
	c.t.Helper()
	c.write("job", fmt.Sprintf(`#!/bin/sh
out=%[1]s/out/$SLURM_JOB_ID
env >$out.new
echo PID=$$ >>$out.new
mv $out.new $out
until [ -e %[1]s/go ] || [ ! -d %[1]s ]; do sleep .05; done
`, c.dir))
	sbatch := append([]string{"--parsable", "--chdir=/tmp", "--output=/dev/null", "--uid=nobody"}, args...)
	return c.command("sbatch", append(sbatch, c.path("job"))...)
}

// runs waits until a job runs, and returns its environment with its PID.
func (c *cluster) runs(id string) map[string]string {
	c.t.Helper()
	c.eventually("job "+id+" runs", func() bool { return c.there("out/" + id) })
	env := map[string]string{}
	for line := range strings.Lines(c.read("out/" + id)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		env[key] = value
	}
	return env
}

// state returns the state of a job.
func (c *cluster) state(id string) string {
	_, state, _ := strings.Cut(c.command("scontrol", "--oneliner", "show", "job", id), " JobState=")
	state, _, _ = strings.Cut(state, " ")
	return state
}

// finish lets the running jobs end, and waits for their epilogs.
func (c *cluster) finish(ids ...string) {
	c.t.Helper()
	c.write("go", "")
	for _, id := range ids {
		c.eventually("job "+id+" has ended", func() bool { return c.state(id) == "COMPLETED" })
	}
	c.eventually("the epilogs have ended", func() bool {
		return c.command("sinfo", "--noheader", "--format=%T") == "idle"
	})
	fixture.Must(c.t, os.Remove(c.path("go")))
}

// TestSlurm runs jobs with the scripts and an agent that enforces quotas.
func TestSlurm(t *testing.T) {
	c := newCluster(t)
	library := fixture.Value(os.ReadFile("/lib/x86_64-linux-gnu/libm.so.6"))(t) // instead of the hook
	c.write("lib/libgpusteward.so", string(library))
	c.write("gpusteward.yml", fmt.Sprintf("enforcer:\n  enabled: true\n  socket: %[1]s/run/b/broker.sock\n"+
		"  tenants_dirs: [%[1]s/run/tenants.d]\n  tenants:\n    - {name: anybody}\n", c.dir))
	address := fixture.FreeAddress(t)
	agent := c.daemon("agent.log", c.path("bin/gpusteward"), "--demo="+c.path("two.yml"),
		"--config.file="+c.path("gpusteward.yml"), "--runtime.dir="+c.path("run"), "--web.listen-address="+address)
	metrics := func() string {
		r, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			return ""
		}
		defer r.Body.Close()
		body, _ := io.ReadAll(r.Body) // the caller tries again
		return string(body)
	}
	c.eventually("the broker runs", func() bool { return strings.Contains(metrics(), "\ngpusteward_broker_up 1\n") })

	// A job on two of four shards, an array of two tasks, and a job on a whole GPU.
	job := c.job("--gres=shard:2", "--account=lab")
	env := c.runs(job)
	gpu := env["SLURM_JOB_GPUS"]
	record := func(job, account, gpus string) string {
		return fmt.Sprintf("JOB=%s\nUSER=nobody\nUID=65534\nACCOUNT=%s\nPARTITION=gpu\nGPUS=%s\n", job, account, gpus)
	}
	fixture.Equal(t, c.read("run/slurm/"+job), record(job, "lab", gpu), "the record is")
	fixture.Equal(t, env["LD_PRELOAD"], c.path("lib/libgpusteward.so"), "LD_PRELOAD is")
	tenant := "slurm-" + job
	c.eventually("its tenant is in force", func() bool {
		page := metrics()
		series := fmt.Sprintf("nvgpu_quota_compute_guarantee_ratio{gpu=%q,tenant=%q,", gpu, tenant)
		return strings.Contains(page, series) && strings.Contains(page, "\ngpusteward_tenant_files_refused 0\n")
	})
	for line := range strings.Lines(metrics()) {
		if strings.HasPrefix(line, "nvgpu_quota_compute_guarantee_ratio{") && strings.Contains(line, tenant) {
			want := " 0\n"
			if strings.Contains(line, fmt.Sprintf("gpu=%q", gpu)) {
				want = " 0.5\n"
			}
			fixture.Equal(t, strings.HasSuffix(line, want), true, "%s, want%s", line, want)
		}
	}
	c.explains(env["PID"], job, gpu)

	whole := c.job("--gres=gpu:1")
	c.runs(whole)
	tasks := c.job("--gres=shard:1", "--array=1-2")
	var ids []string
	c.eventually("both tasks of the array run", func() bool {
		ids = strings.Fields(c.command("squeue", "--noheader", "--format=%A", "--states=RUNNING", "--jobs="+tasks))
		return len(ids) == 2
	})
	for _, id := range append(ids, whole) {
		env := c.runs(id)
		fixture.Equal(t, c.read("run/slurm/"+id), record(id, "", env["SLURM_JOB_GPUS"]), "the record is")
		quota := c.read("run/tenants.d/slurm-" + id + ".yml")
		fixture.Equal(t, strings.Contains(quota, "limit: 25.00 %"), id != whole, "that job %s has a quarter is", id)
	}
	c.finish(append(ids, job, whole)...)
	for _, id := range append(ids, job, whole) {
		c.eventually("the files of the job are removed", func() bool {
			return !c.there("run/slurm/"+id) && !c.there("run/tenants.d/slurm-"+id+".yml")
		})
	}
	c.eventually("the agent has forgotten the jobs", func() bool {
		page := metrics()
		return page != "" && !strings.Contains(page, `"slurm-`)
	})

	// Without the agent, jobs run without the hook.
	c.end(agent)
	fixture.Must(t, os.RemoveAll(c.path("run")))
	job = c.job("--gres=shard:3")
	if env := c.runs(job); env["LD_PRELOAD"] != "" {
		t.Errorf("without a broker LD_PRELOAD is %q", env["LD_PRELOAD"])
	}
	c.finish(job)
	fixture.Equal(t, c.command("sinfo", "--noheader", "--list-reasons"), "", "the node was drained")

	// A GPU is lost.
	c.write("sick", "")
	c.eventually("the node is drained", func() bool {
		return strings.HasPrefix(c.command("sinfo", "--noheader", "--list-reasons", "--format=%E"),
			"gpusteward: CRITICAL - ")
	})
	reason := c.command("sinfo", "--noheader", "--list-reasons", "--format=%E")
	state := c.command("sinfo", "--noheader", "--format=%T")
	fixture.If(t, !strings.Contains(reason, "GPU 1 does not answer: gpu is lost") || state != "drained",
		"the node is %s: %s", state, reason)
	t.Logf("sinfo: %s, %s", state, reason)
}

// explains checks gpusteward's explanation of a job's process for an unprivileged user, who
// cannot read the environment of the process.
func (c *cluster) explains(pid, job, gpu string) {
	c.t.Helper()
	if !c.cgroups {
		c.t.Log("NOT TESTED: the owner of a process, because jobs have no cgroups here")
		return
	}
	cmd := exec.Command(c.path("bin/gpusteward"), "--runtime.dir="+c.path("run"),
		"config", "check", c.path("gpusteward.yml"), "--explain="+pid)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1, Gid: 1}}
	out, err := cmd.CombinedOutput()
	fixture.Stop(c.t, err != nil, "%v\n%s", err, out)
	for _, want := range []string{
		"workload: slurm:" + job + ".batch, a slurm; job " + job + "; step batch; Slurm user nobody; account lab\n",
		"so it belongs to slurm-" + job + "\n",
		"cannot ask for another",
		"on GPU " + gpu + ": guarantee 50 %, limit 50 %",
		"on every other GPU: guarantee 0 %, limit 1 %",
	} {
		fixture.If(c.t, !strings.Contains(string(out), want), "the explanation lacks %q:\n%s", want, out)
	}
}
