package integration

import (
	"fmt"
	"net/http"
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
	if kept := a.scrape()["gpusteward_config_last_reload_success_timestamp_seconds"]; kept != good {
		t.Errorf("a bad file moved the time of the last good one from %v to %v", good, kept)
	}

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
	const processes = "/api/v1/processes?gpu=GPU-0"
	if !has(processes, `"listed":false,"all":0,"processes":[]`) || has("/api/v1/state", "grafana_url") {
		t.Error("processes are listed, or there is a Grafana, without a word in the configuration")
	}
	f.set("config.yml", "collectors: {fast: 500ms, medium: 500ms, per_process: true}\n"+
		"web: {grafana_url: \"https://grafana.example.com/g\"}\n")
	a.hup()
	eventually(t, "the processes are listed", func() bool { return has(processes, `"listed":true`) })
	eventually(t, "the Grafana is in the state", func() bool {
		return has("/api/v1/state", `"grafana_url":"https://grafana.example.com/g"`)
	})
}
