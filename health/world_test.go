package health

import (
	"bytes"
	"embed"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// notInSites are the families that checks read and that no healthy site shows, with reasons. If a check reads another
// absent family, add it to the sites.
var notInSites = map[*collectors.Metric]string{
	device.VGPUMemoryUsed: "of hosts that give out virtual GPUs", faults.RetiredPages: "of boards before Ampere",
	workloads.UnknownMemory: "of a process that has ended", workloads.JobHang: "of a job that hangs",
	workloads.JobSlowdown: "of a slow job", workloads.JobStraggler: "of a job with a straggler",
	workloads.SuspendedSeconds: "of a suspended workload", workloads.SuspendBroken: "as SuspendedSeconds",
	workloads.OvercommitWait: "of an overcommitted GPU",
}

// TestSitesCoverEveryCheck holds that no check is quiet because no site shows its input.
func TestSitesCoverEveryCheck(t *testing.T) {
	t.Parallel()
	shown := map[*collectors.Metric]bool{}
	for _, style := range worldTable("styles")[1:] {
		w := guard(newSite(style, 1))
		w.site.silence("late", 4*time.Second, w.site.boards[0])
		for range 6 {
			w.pass()
			for _, s := range w.samples {
				shown[s.Metric] = true
			}
		}
	}
	read := derived.Inputs()
	for _, c := range Checks() {
		read = append(read, c.Metrics()...)
	}
	own := fixture.Value(os.ReadFile("METRICS.md"))(t) // of the engine
	for _, m := range read {
		if reason := notInSites[m]; !bytes.Contains(own, []byte("`"+m.Name+"`")) && shown[m] == (reason != "") {
			t.Errorf("%s is read by a check; shown by a site of world_show_test.go: %v, reason in notInSites why not: %q. "+
				"It needs one of the two", m.Name, shown[m], reason)
		}
	}
}

// The facts about boards, work, hosts and the kernel's lines are in tables.
//
//go:embed testdata/world
var worldFiles embed.FS

// A worldRow is a row of one of these tables, by column.
type worldRow map[string]string

// worldTable returns a table of testdata/world, whose first column is a name.
var worldTable = func() func(name string) []worldRow {
	var mu sync.Mutex
	read := map[string][]worldRow{}
	return func(name string) []worldRow {
		mu.Lock()
		defer mu.Unlock()
		if read[name] == nil {
			read[name] = readWorldTable(name)
		}
		return read[name]
	}
}()

func readWorldTable(name string) (all []worldRow) {
	incident.ReadTable(worldFiles, "testdata/world/"+name+".tsv", func(row map[string]string) error {
		all = append(all, row)
		return nil
	})
	return all
}

// worldRowOf returns a table's row with a value in a column.
func worldRowOf(table, column, value string) worldRow {
	for _, row := range worldTable(table) {
		if row[column] == value {
			return row
		}
	}
	panic(fmt.Sprintf("health: %s.tsv has no %s %q", table, column, value))
}

// number returns a column as a number.
func (r worldRow) number(column string) float64 {
	v, err := strconv.ParseFloat(r[column], 64)
	if err != nil {
		panic(fmt.Sprintf("health: column %s: %v", column, err))
	}
	return v
}

// has reports whether the column has contains a word.
func (r worldRow) has(word string) bool { return strings.Contains(" "+r["has"]+" ", " "+word+" ") }

// crowded is a host with 64 workloads and 18 links on each GPU.
var crowded = worldRow{"style": "crowded", "boards": "h100-each", "work": "64xqueue:8", "habits": "tenants=0"}

// BenchmarkEval measures one judgement over eight GPUs by all checks, including the snapshot: with sums of their links,
// with each of them, and with 64 workloads on each GPU. The goal is 2 ms.
func BenchmarkEval(b *testing.B) {
	for _, style := range []worldRow{{"style": "sums", "boards": "h100", "work": "dense:8"},
		{"style": "links", "boards": "h100-each", "work": "dense:8"}, crowded} {
		b.Run(style["style"], func(b *testing.B) {
			s := newSite(style, 1)
			e := NewEngine(Checks(), s.now())
			for range 100 {
				e.Eval(derived.NewSnapshot(s.pass()), nil, s.now())
			}
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				b.StopTimer()
				samples := s.pass()
				b.StartTimer()
				e.Eval(derived.NewSnapshot(samples), nil, s.now())
			}
		})
	}
}
