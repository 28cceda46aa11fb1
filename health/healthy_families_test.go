package health

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpusteward/collectors"
)

// notHealthy are the families that health reads and that no healthy host here
// shows, with reasons.
var notHealthy = map[string]string{
	"AddressingMode": "says which memory is the host's: TestCauses shows it",
	"C2CUp":          "as AddressingMode",
	"PCIDeviceBound": "says which GPUs virtual machines have: TestCauses shows it",
	"RetiredPages":   "of GPUs before Ampere",
	"FanSpeed":       "of boards with fans of their own",
	"UnknownMemory":  "of processes that have ended",
	"JobHang":        "of jobs that hang",
	"JobSlowdown":    "of jobs that are slow",
	"JobStraggler":   "of jobs with a straggler",
	"VGPUMemoryUsed": "of hosts that give out virtual GPUs",

	"SuspendedSeconds": "of suspended workloads",
	"SuspendBroken":    "as SuspendedSeconds",
	"OvercommitWait":   "of overcommitted GPUs",
}

var declaration = regexp.MustCompile(`(\w+)\s*=\s*(?:collectors\.)?(?:Host)?(?:Gauge|Counter)\(\s*"(\w+)"`)

// TestHealthyHostsCoverEveryJudgedFamily compares the healthy hosts with the
// families that health reads, according to its source. A family that they do
// not show would have uncounted false alarms.
func TestHealthyHostsCoverEveryJudgedFamily(t *testing.T) {
	shown := map[string]bool{}
	for seed := range uint64(40) {
		h := newHealthyHost(seed)
		h.late[h.gpus[0]] = 1
		for range stepsHour {
			samples, _ := h.step()
			for _, s := range samples {
				shown[s.Metric.Name] = true
			}
		}
	}
	names, judged := familyNames(t), judgedFamilies(t)
	if len(judged) < 40 {
		t.Fatalf("health reads %d families only: %v", len(judged), judged)
	}
	for _, variable := range judged {
		name, is := names[variable]
		if reason := notHealthy[variable]; is && shown[name] == (reason != "") {
			t.Errorf("%s (%s) is shown by healthy hosts: %v; reason why not: %q", variable, name,
				shown[name], reason)
		}
	}
	for _, m := range []*collectors.Metric{Pressure, TelemetryLost} {
		if !shown[m.Name] {
			t.Errorf("%s is not shown by healthy hosts", m)
		}
	}
}

// familyNames returns the names of the collectors' families by variable.
func familyNames(t *testing.T) map[string]string {
	t.Helper()
	names := map[string]string{}
	for _, file := range append(glob(t, "../collectors/*.go"), glob(t, "../collectors/*/*.go")...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range declaration.FindAllStringSubmatch(string(text), -1) {
			names[m[1]] = m[2]
		}
	}
	return names
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") })
}

// judgedFamilies returns the families that health's source names, by variable.
func judgedFamilies(t *testing.T) (all []string) {
	t.Helper()
	names := familyNames(t)
	for _, file := range glob(t, "*.go") {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		var packages []string // those below collectors, and collectors
		for _, i := range f.Imports {
			if p := strings.Trim(i.Path.Value, `"`); strings.HasPrefix(p, "gpusteward/collectors") {
				packages = append(packages, path.Base(p))
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				x, ok := s.X.(*ast.Ident)
				if ok && slices.Contains(packages, x.Name) && names[s.Sel.Name] != "" && !slices.Contains(all, s.Sel.Name) {
					all = append(all, s.Sel.Name)
				}
			}
			return true
		})
	}
	return all
}
