package config

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
)

// drops are files of tenants with a configuration.
type drops struct {
	t   *testing.T
	dir string
	c   Enforcer
	TenantFiles
}

func newDrops(t *testing.T, tenants ...Tenant) *drops {
	d := &drops{t: t, dir: t.TempDir(), c: Defaults().Enforcer}
	d.c.Tenants, d.c.TenantsDirs, d.Log = tenants, []string{d.dir, filepath.Join(d.dir, "none")}, slog.New(slog.DiscardHandler)
	return d
}

func (d *drops) path(name string) string { return filepath.Join(d.dir, name) }

// put replaces a file atomically, as programs do; an empty text removes it.
func (d *drops) put(name, text string) {
	d.t.Helper()
	if text == "" {
		os.Remove(d.path(name))
		return
	}
	fixture.Rewrite(d.t, d.path("."+name), text)
	fixture.Must(d.t, os.Rename(d.path("."+name), d.path(name)))
}

// names returns the tenants in force, and the refused files with the reasons.
func (d *drops) names() (names, refused string) {
	files, _ := d.Look(d.c, false)
	if err := d.Problems(); err != nil {
		refused = strings.ReplaceAll(err.Error(), d.dir+"/", "")
	}
	return strings.Join(policy.New(d.c.Table(files), policy.HostView{}, nil).Tenants(), " "), refused
}

// TestTenantFiles takes steps: a file gets a text, after which these tenants are in force, and a file is refused. A bad
// file does not replace a good one, nobody has a name that is in use, and two files may exchange their names.
func TestTenantFiles(t *testing.T) {
	t.Parallel()
	d := newDrops(t, Tenant{Name: "own"})
	for _, step := range fixture.Rows(t, "testdata/tenantfiles.tsv") {
		if step[0] != "" {
			d.put(step[0], fixture.Value(strconv.Unquote(step[1]))(t))
		}
		names, refused := d.names()
		fixture.If(t, names != step[2] || !strings.HasPrefix(refused, step[3]) || refused != "" && step[3] == "",
			"%q, refused %q after %s", names, refused, step)
	}
}

// The owner and the mode of a file count. A directory, a pipe and a dangling link are no files.
func TestTenantFilesOfOthers(t *testing.T) {
	t.Parallel()
	d := newDrops(t)
	d.put("a.yml", "- name: a\n")
	d.put("b.yml", "- name: b\n")
	fixture.Must(t, os.Chmod(d.path("b.yml"), 0o620))
	fixture.Must(t, os.Mkdir(d.path("c.yml"), 0o755))
	fixture.Must(t, os.Symlink("a.yml", d.path("d.yml"))) // the same file again
	want := []string{"b.yml: users other than its owner can write it", "c.yml: it is not a regular file",
		`d.yml:1: [0].name: "a" is the name of a.yml[0] too`}
	if os.Getuid() == 0 {
		d.put("e.yml", "- name: e\n")
		fixture.Must(t, os.Chown(d.path("e.yml"), 1000, 0))
		want = append(want, "e.yml: it belongs to user 1000, and only root's files are trusted")
	}
	names, refused := d.names()
	lines := strings.Split(refused, "\n")
	fixture.Stop(t, names != "a" || len(lines) != len(want) || d.Refusals() != len(want),
		"%q, refused\n%s", names, refused)
	for i := range want {
		fixture.Equal(t, strings.HasPrefix(lines[i], want[i]), true, "%q, want %q", lines[i], want[i])
	}
	fixture.Must(t, os.Chmod(d.path("b.yml"), 0o600)) // which changes no text
	if names, _ := d.names(); names != "a b" {
		t.Errorf("%q after the file is root's alone", names)
	}
}

// A new configuration takes precedence over the files.
func TestTenantFilesWithAnotherConfiguration(t *testing.T) {
	t.Parallel()
	d := newDrops(t)
	d.put("a.yml", "- name: a\n")
	d.put("b.yml", "- name: b\n")
	d.names()
	d.c.Tenants = []Tenant{{Name: "a"}}
	files, changed := d.Look(d.c, true)
	if !changed || len(files) != 1 || files[0].Path != d.path("b.yml") || d.Refusals() != 1 {
		t.Errorf("%v are in force, changed %v, %v", files, changed, d.Problems())
	}
	if _, changed := d.Look(d.c, false); changed {
		t.Error("nothing changed, and it is said to have")
	}
}

func TestTenantFilesAreBounded(t *testing.T) {
	t.Parallel()
	d := newDrops(t)
	for i := range mostTenantFiles + 1 {
		d.put(fmt.Sprintf("%04d.yml", i), "# none\n")
	}
	d.put("0000.yml", strings.Repeat("#", longestTenantFile+1))
	_, refused := d.names()
	fixture.If(t, !strings.Contains(refused, "more than 1024 files are not read") ||
		!strings.Contains(refused, "0000.yml: it has more than 262144 bytes"), "%v", refused)
}

// The maximum number of tenants can come in files of their own. One more is refused; the others are not.
func TestOneTenantTooMany(t *testing.T) {
	t.Parallel()
	d := newDrops(t, Tenant{Name: "own"})
	for i := range 255 {
		d.put(fmt.Sprintf("slurm-%d.yml", i), fmt.Sprintf("- {name: slurm-%d, select: [{workloads: [\"slurm:%d\", "+
			"\"slurm:%d.*\"]}]}\n", i, i, i))
	}
	if names, refused := d.names(); len(strings.Fields(names)) != 256 || refused != "" {
		t.Fatalf("%d tenants, refused %s", len(strings.Fields(names)), refused)
	}
	d.put("0.yml", "- name: more\n")
	if names, refused := d.names(); len(strings.Fields(names)) != 256 ||
		!strings.Contains(refused, "there are 257") {
		t.Fatalf("%d tenants, refused %s", len(strings.Fields(names)), refused)
	}
}

// A process of a binding tenant has no way to another tenant, not even to one
// for everybody that asks. The tenant's memory is a part of the GPU's.
func TestBindingTenant(t *testing.T) {
	t.Parallel()
	d := newDrops(t, Tenant{Name: "anybody"})
	d.put("job.yml", "- {name: slurm-7, select: [{workloads: [\"slurm:7\", \"slurm:7.*\"]}], binding: true, limit: 1 "+
		"%, memory: 1 MiB, gpus: [{gpu: [\"2\"], limit: 25 %, memory: 25 %}]}\n")
	files, _ := d.Look(d.c, false)
	fixture.Must(t, d.Problems())
	p := policy.New(d.c.Table(files), policy.HostView{
		Names:  func(uuid string) []string { return []string{strconv.Itoa(len(uuid)), uuid} },
		Memory: func(string) (uint64, bool) { return 80 << 30, true },
	}, nil)
	job := broker.Facts{PID: 1, Cgroup: "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"}
	for wished, want := range map[string]string{"": "slurm-7", "slurm-7": "slurm-7", "anybody": "", "default": "",
		"other": ""} {
		if got, err := p.Tenant(job, wished); got != want || (err != nil) != (want == "") {
			t.Errorf("asking for %q it is of %q, %v; want %q", wished, got, err, want)
		}
	}
	other := job
	other.Cgroup = "0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0\n"
	if got, err := p.Tenant(other, "anybody"); got != "anybody" || err != nil {
		t.Errorf("another job asks for anybody and is of %q, %v", got, err)
	}
	q := p.Quota("slurm-7", "xx")
	fixture.If(t, q.Memory != 20<<30 || q.Limit != .25, "on the GPU that it was given: %+v", q)
	q = p.Quota("slurm-7", "x")
	fixture.If(t, q.Memory != 1<<20 || q.Limit != .01, "on another one: %+v", q)
}
