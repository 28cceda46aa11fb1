package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gpusteward/internal/fixture"
)

func TestReloadAppliesAGoodFileAndRefusesABadOne(t *testing.T) {
	t.Parallel()
	const tiers = "collectors:\n  fast: 500ms\n  medium: 500ms\n"
	path := fixture.Config(t, tiers)
	a := spawn(t, nil, "--demo=testdata/scenario/two.yml", "--config.file="+path).ready()
	fabric := func() bool { return len(a.scrape().family("nvgpu_fabric_state")) > 0 }
	success := func() float64 { return a.scrape()["gpusteward_config_reload_success"] }
	reload := func(text string) {
		fixture.Rewrite(t, path, text)
		a.hup()
	}
	eventually(t, "the fabric is read", fabric)
	at := a.scrape()["gpusteward_config_last_reload_success_timestamp_seconds"]
	w := observe(a, 1, func(s series) string {
		if up := s.family("nvgpu_up"); !slices.Equal(up, []float64{1, 1}) {
			return fmt.Sprintf("nvgpu_up %v", up)
		}
		return ""
	})
	defer w.stop()

	reload(tiers + "  disable: [fabric]\n")
	eventually(t, "the fabric is no longer read", func() bool { return !fabric() })
	good := a.scrape()["gpusteward_config_last_reload_success_timestamp_seconds"]
	if success() != 1 || good <= at {
		t.Errorf("after a good file: success %v, at %v after %v", success(), good, at)
	}

	reload(tiers + "  disabel: []\n")
	eventually(t, "the bad file is reported", func() bool { return success() == 0 })
	if entry := a.log.find("configuration not reloaded, the previous one stays in force"); entry == nil ||
		!strings.Contains(entry["err"].(string), path+":4: unknown key") {
		t.Errorf("the log does not say what is wrong with the file: %v", entry)
	}
	fixture.Equal(t, fabric(), false, "a bad file replaced the good one")
	kept := a.scrape()["gpusteward_config_last_reload_success_timestamp_seconds"]
	fixture.If(t, kept != good, "a bad file moved the time of the last good one from %v to %v", good, kept)

	reload(tiers)
	eventually(t, "the repaired file is in force", func() bool { return success() == 1 && fabric() })
	w.saw(t)
	a.endsWell()
}

// hup has the agent read its configuration again.
func (a *agent) hup() {
	a.t.Helper()
	fixture.Must(a.t, syscall.Kill(a.pid, syscall.SIGHUP))
}

// reloads waits until it has.
func (a *agent) reloads() {
	a.t.Helper()
	const last = "gpusteward_config_last_reload_success_timestamp_seconds"
	before := a.scrape()[last]
	a.hup()
	a.sees("the configuration is read again", func(s series) bool { return s[last] > before })
}

// A host lists its processes for the page only if the configuration says so, and
// the page links to the Grafana of the configuration; both from a reload on.
func TestReloadOfThePage(t *testing.T) {
	t.Parallel()
	f := newDriver(t)
	a := f.spawn().ready()
	has := func(path, text string) bool {
		status, body := a.get(path)
		return status == http.StatusOK && strings.Contains(body, text)
	}
	const processes = "/api/v1/processes?gpu=0"
	fixture.If(t, !has(processes, `"listed":false,"all":0,"processes":[]`) || has("/api/v1/state", "grafana_url"),
		"processes are listed, or there is a Grafana, without a word in the configuration")
	f.set("config.yml", "collectors: {fast: 500ms, medium: 500ms, per_process: true}\n"+
		"web: {grafana_url: \"https://grafana.example.com/g\"}\n")
	a.hup()
	eventually(t, "the processes are listed", func() bool { return has(processes, `"listed":true`) })
	eventually(t, "the Grafana is in the state", func() bool {
		return has("/api/v1/state", `"grafana_url":"https://grafana.example.com/g"`)
	})
}

// The agent applies files of tenants that are created, changed and deleted
// while it runs, counts bad ones, and keeps nothing of deleted tenants.
func TestAgentTakesTenantFiles(t *testing.T) {
	t.Parallel()
	dir := fixture.ShortDir(t)
	drops := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		fixture.Rewrite(t, filepath.Join(drops, "."+name), text)
		fixture.Must(t, os.Rename(filepath.Join(drops, "."+name), filepath.Join(drops, name)))
	}
	take := func(name string) { os.Remove(filepath.Join(drops, name)) }
	socket := filepath.Join(dir, "broker.sock")
	config := fixture.Config(t, fmt.Sprintf(quickly+"enforcer:\n  enabled: true\n  socket: %s\n  tenants_dirs: [%s]\n  tenants:\n    "+
		"- {name: own, guarantee: 10 %%}\n", socket, drops))
	a := spawn(t, nil, "--demo=testdata/scenario/two.yml", "--config.file="+config, "--runtime.dir="+dir).ready()
	a.sees("the broker", func(s series) bool { return s["gpusteward_broker_up"] == 1 })
	uuid := a.uuid(1)
	if _, tenant := hello(t, socket, uuid, ""); tenant != "default" {
		t.Errorf("before there is a file it is of %q", tenant)
	}
	put("mine.yml", fmt.Sprintf("- {name: mine, select: [{users: [%d]}], memory: 50 %%}\n", os.Getuid()))
	of := func(tenant string) string { return fmt.Sprintf(`{gpu="1",tenant="%s",uuid="%s"}`, tenant, uuid) }
	total := a.scrape()[fmt.Sprintf(`nvgpu_memory_total_bytes{gpu="1",uuid="%s"}`, uuid)]
	a.sees("the session that was there is of the new tenant", func(s series) bool {
		return s["nvgpu_quota_sessions"+of("mine")] == 1 && total > 0 &&
			s["nvgpu_quota_memory_limit_bytes"+of("mine")] == total/2
	})
	put("mine.yml", "- {name: mine, limit: 200 %}\n")
	a.sees("the bad file", func(s series) bool {
		return s["gpusteward_tenant_files_refused"] == 1 && s["nvgpu_quota_sessions"+of("mine")] == 1
	})
	if entry := a.log.find("file of tenants refused, its previous tenants stay in force"); entry == nil ||
		!strings.Contains(fmt.Sprint(entry["err"]), filepath.Join(drops, "mine.yml")+":1: [0].limit: 2 is not") {
		t.Errorf("the log says %v", entry)
	}
	take("mine.yml")
	a.sees("it is gone", func(s series) bool {
		return s["gpusteward_tenant_files_refused"] == 0 && s["nvgpu_quota_sessions"+of("default")] == 1 &&
			s["nvgpu_quota_compute_guarantee_ratio"+of("own")] == .1
	})

	// There are 100 jobs. The last ones have a session, as many as one process may have. Nothing is left of any.
	var sessions []hooked
	job := func(i int) string { return fmt.Sprint("slurm-", i) }
	for i := range 100 {
		put(job(i)+".yml", fmt.Sprintf("- {name: %s, memory: 10 %%}\n", job(i)))
	}
	a.sees("the jobs' tenants", func(s series) bool {
		_, there := s["nvgpu_quota_compute_guarantee_ratio"+of(job(99))]
		return there
	})
	for i := 88; i < 100; i++ {
		h, tenant := hello(t, socket, uuid, job(i))
		fixture.Need(t, tenant, job(i), "it is of")
		sessions = append(sessions, h)
	}
	a.sees("the jobs' sessions", func(s series) bool { return s["nvgpu_quota_sessions"+of(job(99))] == 1 })
	for _, h := range sessions {
		h.conn.Close()
	}
	for i := range 100 {
		take(job(i) + ".yml")
	}
	eventually(t, "nothing is left of the jobs", func() bool {
		_, page := a.get("/metrics")
		return !strings.Contains(page, `"slurm-`)
	})
	a.endsWell()
}
