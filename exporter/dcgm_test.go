package exporter

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/internal/fixture"
)

// dcgmPage returns /metrics/dcgm for s.
func dcgmBody(t *testing.T, s samples, headers ...string) string {
	t.Helper()
	w := request(server(t, func(o *Options) {
		o.Samples, o.Hostname = func() []collectors.Sample { return s }, "node17"
		o.XID = func(code int) string { return map[int]string{79: "lost"}[code] }
	}), http.MethodGet, "/metrics/dcgm", headers...)
	wantAnswer(t, w, http.StatusOK, "")
	return w.Body.String()
}

// series returns the values of a family by GPU and GPU_I_ID.
func series(t *testing.T, body, name string) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, m := range parse(t, strings.NewReader(body))[name].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.Label {
			labels[l.GetName()] = l.GetValue()
		}
		out[strings.TrimSuffix(labels["gpu"]+"/"+labels["GPU_I_ID"], "/")] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
	}
	return out
}

func wantSeries(t *testing.T, body, name string, want map[string]float64) {
	t.Helper()
	got := series(t, body, name)
	fixture.If(t, fmt.Sprint(got) != fmt.Sprint(want), "%s is %v, want %v", name, got, want)
}

func TestDCGMGolden(t *testing.T) {
	t.Parallel()
	var s samples
	s.host(1, 1)
	s.h100("0")
	s.added("0")
	body := dcgmBody(t, s)
	fixture.Golden(t, "testdata/"+"dcgm.prom", body)
	families := parse(t, strings.NewReader(body))
	for _, r := range dcgmRows {
		want := dto.MetricType_GAUGE
		if r.kind == collectors.CounterType {
			want = dto.MetricType_COUNTER
		}
		if f := families[r.name]; f.GetType() != want || len(f.GetMetric()) != 1 {
			t.Errorf("%s: a %v with %d series, want a %v with one", r.name, f.GetType(), len(f.GetMetric()), want)
		}
	}
	defaults := fixture.Value(os.ReadFile("../collectors/testdata/dcgm.tsv"))(t) // dcgm-exporter's
	for _, line := range strings.Split(strings.TrimSpace(string(defaults)), "\n")[1:] {
		name, _, _ := strings.Cut(line, "\t")
		fixture.If(t, families[name] == nil, "%s is not served", name)
	}
}

func TestDCGMShowsInstancesInsteadOfTheirGPU(t *testing.T) {
	t.Parallel()
	var s samples
	s.host(2, 2)
	s.h100("0")
	s.h100("1")
	s.mig("1")
	body := dcgmBody(t, s)
	wantSeries(t, body, "DCGM_FI_DEV_FB_USED", map[string]float64{"0": 66887, "1/9": 4608, "1/10": 19968})
	wantSeries(t, body, "DCGM_FI_DEV_FB_RESERVED", map[string]float64{"0": 480, "1/9": 0, "1/10": 0})
	wantSeries(t, body, "DCGM_FI_PROF_SM_ACTIVE", map[string]float64{"0": .9489, "1/9": .09, "1/10": .39})
	wantSeries(t, body, "DCGM_FI_PROF_SM_OCCUPANCY", map[string]float64{"0": .1402, "1/9": .5, "1/10": .5})
	wantSeries(t, body, "DCGM_FI_PROF_PCIE_TX_BYTES", map[string]float64{"0": 6668245, "1/9": 900, "1/10": 3900})
	// instances have no value of it
	wantSeries(t, body, "DCGM_FI_PROF_DRAM_ACTIVE", map[string]float64{"0": .2557, "1": .2557})
	wantSeries(t, body, "DCGM_FI_DEV_GPU_TEMP", map[string]float64{"0": 64, "1": 64})
	for _, want := range []string{`GPU_I_ID="9",GPU_I_PROFILE="1g.10gb"`, `GPU_I_ID="10",GPU_I_PROFILE="3g.40gb"`} {
		fixture.Contains(t, body, want, "the text")
	}
	fixture.AtMost(t, strings.Index(body, `GPU_I_ID="9"`), strings.Index(body, `GPU_I_ID="10"`),
		"the place of instance 9, and then of instance 10")
	fixture.Equal(t, strings.Contains(body, `GPU_I_ID=""`), false, "a GPU that is not split has an empty instance")
}

// TestDCGMNamesTheHolder compares the labels of a GPU with a pod, one with a job, one that pods of a namespace share,
// one without a holder, and one with instances.
func TestDCGMNamesTheHolder(t *testing.T) {
	t.Parallel()
	var s samples
	for gpu := range 5 {
		s.h100(strconv.Itoa(gpu))
	}
	s.mig("4")
	s.held("0", "", "chat", "llama-0", "vllm", "")
	s.held("1", "", "", "", "", "4711")
	s.held("2", "", "chat", "", "", "")
	s.held("4", "9", "chat", "llama-1", "vllm", "")
	s.held("4", "10", "search", "embed-0", "server", "")
	pod := func(namespace, pod, container string) string {
		return fmt.Sprintf("container=%s exported_container=%[1]s exported_namespace=%s exported_pod=%s "+
			"namespace=%[2]s pod=%[3]s", container, namespace, pod)
	}
	want := map[string]string{"0": pod("chat", "llama-0", "vllm"), "1": "hpc_job=4711",
		"2": "exported_namespace=chat namespace=chat", "3": "", "4": "",
		"4/9": pod("chat", "llama-1", "vllm"), "4/10": pod("search", "embed-0", "server")}
	seen := map[string]bool{}
	for name, f := range parse(t, strings.NewReader(dcgmBody(t, s))) {
		for _, m := range f.GetMetric() {
			place, holder := map[string]string{}, []string{}
			for _, l := range m.Label {
				switch n := l.GetName(); n {
				case "gpu", "GPU_I_ID":
					place[n] = l.GetValue()
				case "namespace", "pod", "container", "exported_namespace", "exported_pod", "exported_container",
					"hpc_job":
					holder = append(holder, n+"="+l.GetValue())
				}
			}
			slices.Sort(holder)
			of := strings.TrimSuffix(place["gpu"]+"/"+place["GPU_I_ID"], "/")
			if seen[of] = true; strings.Join(holder, " ") != want[of] {
				t.Errorf("%s of %s has the holder %q, want %q", name, of, holder, want[of])
			}
		}
	}
	fixture.Equal(t, len(seen), len(want), "other series: %v", seen)
}

func TestDCGMLastXID(t *testing.T) {
	const name = "DCGM_FI_DEV_XID_ERRORS"
	var s samples
	for _, gpu := range []string{"0", "1"} {
		s.put(collectors.Up, 1, gpu, "GPU-"+gpu)
		s.put(faults.Events, 4, gpu, "GPU-"+gpu, "pstate")
	}
	s.put(collectors.Up, 1, "2", "GPU-2") // without events
	wantSeries(t, dcgmBody(t, s), name, map[string]float64{"0": 0, "1": 0})
	s.put(faults.XIDLast, before(time.Hour), "1", "GPU-1", "31")
	s.put(faults.XIDLast, before(time.Minute), "1", "GPU-1", "79")
	s.put(faults.XIDLast, before(2*time.Minute), "1", "GPU-1", "94")
	body := dcgmBody(t, s)
	wantSeries(t, body, name, map[string]float64{"0": 0, "1": 79})
	for _, want := range []string{`err_code="0",err_msg="No Error",gpu="0"`, `err_code="79",err_msg="lost",gpu="1"`} {
		fixture.Contains(t, body, want, "the text")
	}
	s.put(faults.XIDLast, before(0), "1", "GPU-1", "999")
	fixture.Contains(t, dcgmBody(t, s), `err_code="999",err_msg="Unknown Error",gpu="1"`, "the text")
}

// A missing reading is absent, but its substitute is served.
func TestDCGMLeavesOutUnknownValues(t *testing.T) {
	fixture.Equal(t, dcgmBody(t, nil), "", "nothing is known, the body is")
	var s samples
	s.down("0", "gpu_is_lost")
	s.put(device.Power, 200, "1", "GPU-1", "instant", "gpu") // no average, as on an A100; no identity yet
	s.put(device.Info, 1, append([]string{"2", "GPU-2", "NVIDIA Thor"}, make([]string, 12)...)...)
	s.put(device.Temperature, 50, "2", "GPU-2", "gpu")
	body := dcgmBody(t, s)
	wantSeries(t, body, "DCGM_FI_DEV_POWER_USAGE", map[string]float64{"1": 200})
	for _, want := range []string{
		"DCGM_FI_DEV_POWER_USAGE{Hostname=\"node17\",UUID=\"GPU-1\",gpu=\"1\",hostname=\"node17\"} 200\n",
		"DCGM_FI_DEV_GPU_TEMP{Hostname=\"node17\",UUID=\"GPU-2\",gpu=\"2\",hostname=\"node17\",modelName=\"NVIDIA Thor\"} 50\n",
	} {
		fixture.Contains(t, body, want, "the text")
	}
	fixture.Equal(t, strings.Count(body, "\n"), 9, "the body has … lines, want three series with their headings:\n%s", body)
}

// A client that prefers OpenMetrics gets dcgm-exporter's names too.
func TestDCGMNamesAreThoseOfDCGM(t *testing.T) {
	var s samples
	s.h100("0")
	body := dcgmBody(t, s, "Accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
	fixture.If(t, strings.Contains(body, "_total") ||
		strings.Contains(body, "# EOF"), "counters are called otherwise by whoever accepts OpenMetrics")
}

// The responses of two paths are cached separately.
func TestResponsesAreCachedByPath(t *testing.T) {
	s := server(t, func(o *Options) { o.Interval = func() time.Duration { return time.Minute } })
	for range 2 {
		wantAnswer(t, request(s, http.MethodGet, "/metrics"), http.StatusOK, "nvgpu_memory_bytes")
		wantAnswer(t, request(s, http.MethodGet, "/metrics/dcgm"), http.StatusOK, "DCGM_FI_DEV_FB_USED")
		wantAnswer(t, request(s, http.MethodGet, "/api/v1/state"), http.StatusOK, `"memory_bytes":{"used":1073741824}`)
	}
	fixture.Equal(t, len(s.scrapes.cache), 3, "cached responses")
}

// A migration is a row of docs/migration.tsv: names of another exporter, and
// the PromQL expression for the same value here.
type migration struct{ of, names, ours, differs string }

// migrations returns the rows of docs/migration.tsv after those of /metrics/dcgm (dcgm-default and dcgm-added), which
// come from dcgmRows unless the file has them.
func migrations(t *testing.T) (all []migration) {
	t.Helper()
	said := map[string]migration{}
	for _, c := range fixture.Rows(t, "../docs/migration.tsv") {
		fixture.Need(t, len(c), 4, "docs/migration.tsv: %q has … columns", c)
		switch m := (migration{c[0], c[1], c[2], c[3]}); m.of {
		case "of":
		case "dcgm-default", "dcgm-added":
			said[m.names] = m
		default:
			all = append(all, m)
		}
	}
	var served []migration
	for i, r := range dcgmRows {
		if i > 0 && dcgmRows[i-1].name == r.name {
			continue
		}
		m, of := said[r.name], "dcgm-default"
		delete(said, r.name)
		if r.added {
			of = "dcgm-added"
		}
		fixture.If(t, m.of != "" && m.of != of, "docs/migration.tsv: %s is %s, not %s", r.name, of, m.of)
		served = append(served, migration{of, r.name, cmp.Or(m.ours, r.expr()), cmp.Or(m.differs, r.unit())})
	}
	for name := range said {
		t.Errorf("docs/migration.tsv: /metrics/dcgm has no %s", name)
	}
	return append(served, all...)
}

// expr returns the PromQL expression that a row applies to our series.
func (r dcgmRow) expr() string {
	var match, sum []string
	for i, v := range r.match {
		switch label := r.metric.Labels[2+i]; {
		case v == "+":
			sum = append(sum, label)
		case strings.Contains(v, "|"):
			sum = append(sum, label)
			match = append(match, fmt.Sprintf("%s=~%q", label, v))
		default:
			match = append(match, fmt.Sprintf("%s=%q", label, v))
		}
	}
	e := r.metric.Name
	if match != nil {
		e += "{" + strings.Join(match, ",") + "}"
	}
	if sum != nil {
		e = fmt.Sprintf("sum without (%s) (%s)", strings.Join(sum, ", "), e)
	}
	return e + scales[r.scale]
}

var scales = map[float64]string{1: "", 1e-6: " / 1e6", 100: " * 100", 1000: " * 1000", 1. / (1 << 20): " / 2^20",
	1. / 1024: " / 1024", 1e-3: " / 1000", 1e9: " * 1e9"}

// unit returns the unit of our series if it is different.
func (r dcgmRow) unit() string {
	name := strings.TrimSuffix(r.metric.Name, "_total")
	switch unit := name[strings.LastIndexByte(name, '_')+1:]; {
	case r.scale == 1:
		return ""
	case unit == "ratio":
		return "0 to 1"
	default:
		return unit
	}
}

// TestReferenceOfMigration compares the tables of docs/migration.md with
// docs/migration.tsv and /metrics/dcgm, or writes them under -update.
func TestReferenceOfMigration(t *testing.T) {
	const path = "../docs/migration.md"
	text := fixture.Value(os.ReadFile(path))(t)
	tables := map[string]string{}
	for _, m := range migrations(t) {
		names := "`" + strings.ReplaceAll(m.names, " ", "`<br>`") + "`"
		ours := ""
		if m.ours != "" {
			ours = "`" + strings.ReplaceAll(m.ours, "|", `\|`) + "`"
		}
		tables[m.of] += fmt.Sprintf("| %s | %s | %s |\n", names, ours, strings.ReplaceAll(m.differs, "|", `\|`))
	}
	page := string(text)
	for of, rows := range tables {
		begin, end := "<!-- "+of+": written by make generate -->\n", "<!-- end -->"
		before, rest, ok := strings.Cut(page, begin)
		_, after, ended := strings.Cut(rest, end)
		fixture.Stop(t, !ok || !ended, "%s has no %q with its %q", path, begin, end)
		page = before + begin + "| theirs | ours, in their unit | what differs |\n|---|---|---|\n" + rows + end + after
	}
	if *fixture.Update {
		fixture.Must(t, os.WriteFile(path, []byte(page), 0o644))
		return
	}
	fixture.Equal(t, page, string(text), "%s is not what docs/migration.tsv and /metrics/dcgm say; make generate", path)
}
