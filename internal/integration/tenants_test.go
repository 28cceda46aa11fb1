package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// The agent applies files of tenants that are created, changed and deleted
// while it runs, counts bad ones, and keeps nothing of deleted tenants.
func TestAgentTakesTenantFiles(t *testing.T) {
	t.Parallel()
	dir := shortDirectory(t)
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

	// There are 100 jobs. The last ones have a session, as many as one process may
	// have. Nothing is left of any.
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
