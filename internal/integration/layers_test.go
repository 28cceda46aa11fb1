package integration

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// themes are the packages of collectors, one file for each collector.
var themes = []string{"collectors/activity", "collectors/device", "collectors/faults", "collectors/links",
	"collectors/workloads"}

// layers are the package directories, each with those of our packages that it may import. A new package needs
// a row and a reason. Tests may import anything.
var layers = map[string][]string{
	".": {"internal/agent"},
	"internal/agent": {"collectors", "collectors/all", "collectors/device", "collectors/gpu", "collectors/gpu/sim",
		"collectors/gpu/sim/scenarios", "collectors/host", "collectors/links", "exporter", "health", "health/diag", "health/incident", "health/journal", "health/notifier", "enforcer", "enforcer/backend", "enforcer/jobs",
		"enforcer/broker", "enforcer/crash", "enforcer/gemini", "enforcer/escalation", "enforcer/policy", "enforcer/preload", "enforcer/profile", "enforcer/suspend", "internal/config",
		"internal/input", "internal/span", "enforcer/stack", "internal/worker"},
	// only tests
	"internal/integration": {},
	// the only reader of YAML
	"internal/config": {"collectors", "collectors/host", "health", "health/incident", "health/notifier",
		"enforcer/gemini", "enforcer/policy", "internal/input", "internal/quota"},

	// of health only the names of metrics and checks, for what a Prometheus has of other hosts
	"exporter": append([]string{"collectors", "collectors/gpu", "collectors/host", "health", "internal/procs", "internal/wire"}, themes...),
	"health": append([]string{"collectors", "collectors/gpu", "collectors/host", "health/derived", "health/incident",
		"internal/input", "internal/quota"},
		themes...),
	// statistics, without checks
	"health/derived":  append([]string{"collectors", "collectors/host", "health/incident"}, themes...),
	"health/incident": {"collectors", "collectors/host"},                                  // events, before a check judges them
	"health/diag":     {"collectors/gpu", "health", "health/incident", "internal/worker"}, // works on GPUs; health only reads
	// files and HTTP, which the judgement lacks
	"health/journal": {"collectors", "collectors/host", "health/incident"},
	// the Alertmanager client and its 32 modules
	"health/notifier": {"collectors", "health", "health/incident", "internal/span"},

	"enforcer": {"collectors", "collectors/host", "enforcer/audit", "enforcer/backend",
		"enforcer/broker", "enforcer/crash", "enforcer/escalation", "enforcer/jobs", "enforcer/policy", "enforcer/profile",
		"enforcer/response", "enforcer/suspend", "enforcer/swap", "internal/wire"},

	// what is kept of programs that met a fault
	"enforcer/crash": {"collectors/host", "enforcer/broker", "enforcer/symbol", "internal/wire"},
	// where the GPU time of a live program goes
	"enforcer/profile": {"enforcer/broker", "enforcer/symbol", "internal/wire"},
	"enforcer/symbol":  {"internal/wire"}, // names of kernels for people
	// programs under the hook, without a broker of their own
	"enforcer/preload": {"collectors/host", "enforcer/policy", "internal/quota", "internal/wire"},
	// the operator's rules, and nothing that acts on them
	"enforcer/policy": {"collectors", "collectors/host", "enforcer/broker", "enforcer/schedule", "internal/input", "internal/procs", "internal/quota"},
	// pure: the facts about each subject
	"enforcer/audit": {"collectors", "enforcer/policy", "internal/quota", "internal/wire"},
	// pure: the consequences of those facts
	"enforcer/escalation": {"enforcer/audit", "enforcer/policy", "internal/wire"},
	// the steps of the escalation, and the terms meanwhile
	"enforcer/response": {"collectors", "collectors/host", "enforcer/action", "enforcer/audit", "enforcer/broker",
		"enforcer/escalation", "enforcer/policy", "enforcer/suspend", "enforcer/swap", "internal/quota", "internal/span",
		"internal/wire"},
	// everything that touches other processes
	"enforcer/action": {"enforcer/audit", "enforcer/escalation", "internal/procs"},
	// the driver's checkpoints of processes, each call in a child process
	"enforcer/suspend": {"enforcer/action", "enforcer/audit", "internal/procs", "internal/span", "internal/worker"},
	// who suspends whom, and what the others see of it
	"enforcer/swap": {"collectors", "collectors/host", "enforcer/action", "enforcer/audit", "enforcer/broker", "enforcer/jobs",
		"enforcer/policy", "enforcer/residency", "enforcer/suspend", "internal/procs", "internal/quota", "internal/wire"},
	// pure: which workloads have their memory on a GPU
	"enforcer/residency": {"enforcer/audit", "enforcer/policy", "internal/quota"},
	// mechanisms that hold quotas besides the hook
	"enforcer/backend":  {"collectors", "collectors/gpu", "collectors/host", "enforcer/audit", "enforcer/policy", "internal/procs", "internal/wire"},
	"enforcer/broker":   {"internal/procs", "internal/quota", "internal/span", "internal/wire", "enforcer/schedule", "enforcer/ledger"},
	"enforcer/gemini":   {"enforcer/schedule", "enforcer/ledger", "internal/procs", "internal/wire"},
	"internal/wire":     {"internal/quota"}, // frames and books, shared by the broker and its clients
	"enforcer/schedule": {},
	"internal/bounds":   {},                                    // reads the source code; only tests import it
	"internal/fixture":  {},                                    // what tests and measurements of several packages need; only they import it
	"enforcer/ras":      {"internal/worker"},                   // NCCL's own view of a job, and who is late in it
	"enforcer/stack":    {"internal/procs", "internal/worker"}, // stacks of other processes; useful without a GPU
	"internal/procs":    {"internal/worker"},                   // what procfs tells of other processes
	"internal/worker":   {},                                    // child processes that the kernel may hold
	"internal/span":     {},                                    // requests as spans, for who exports them
	"internal/quota":    {"internal/input"},                    // the terms of quotas, for all that use them
	"internal/input":    {},                                    // what is wrong with what an operator wrote
	"enforcer/ledger":   {},
	"enforcer/steps":    {"internal/wire"}, // steps of programs, found in their events; pure
	"enforcer/jobs":     {"enforcer/broker", "enforcer/crash", "enforcer/steps", "internal/procs", "enforcer/ras", "enforcer/stack", "internal/wire", "internal/worker"},

	// the host, and none of what it reads
	"collectors":          {"collectors/catalogue", "collectors/gpu", "collectors/host", "internal/input", "internal/wire"},
	"collectors/activity": {"collectors", "collectors/gpu"},
	"collectors/device":   {"collectors", "collectors/gpu", "collectors/host"},
	"collectors/faults":   {"collectors", "collectors/gpu", "collectors/host"},
	"collectors/links":    {"collectors", "collectors/gpu", "collectors/host"},
	// the books and the quotas of tenants
	"collectors/workloads": {"collectors", "collectors/gpu", "collectors/host", "internal/quota", "internal/wire"},
	"collectors/all":       themes,                                                                                                                        // what a program links
	"collectors/hosttest":  {"collectors", "collectors/gpu", "collectors/gpu/sim", "collectors/gpu/sim/scenarios", "collectors/host", "internal/fixture"}, // for tests
	"collectors/catalogue": {},                                                                                                                            // the list of families; reads nothing
	"collectors/host":      {"internal/procs", "internal/worker"},
	"collectors/gpu":       {},
	// a driver and the kernel around it
	"collectors/gpu/sim": {"collectors/gpu", "collectors/gpu/sim/broker", "collectors/gpu/sim/models",
		"collectors/gpu/sim/noise", "collectors/gpu/sim/scenarios", "collectors/gpu/sim/stub", "collectors/host",
		"internal/wire"},
	// the books of tenants, whatever makes their processes work
	"collectors/gpu/sim/broker": {"collectors/gpu/sim/noise", "collectors/gpu/sim/scenarios", "internal/quota",
		"internal/wire"},
	// what a scenario can say, and nothing that runs it
	"collectors/gpu/sim/scenarios": {"collectors/gpu", "collectors/gpu/sim/models", "internal/input", "internal/quota", "internal/wire"},
	"collectors/gpu/sim/models":    {}, // constants of products
	"collectors/gpu/sim/noise":     {}, // pure
	"collectors/gpu/sim/stub":      {}, // a device without functions, generated

	// the agent's contact with Kubernetes, in a module of its own; it shares no code with the agent
	"deploy/kubernetes/kube": {},

	"bench/agent": {"internal/fixture"}, // a program that measures the agent from outside
	// a program that measures the cost of the hook's trace on real GPUs
	"bench/trace":  {"bench/worker", "enforcer/broker", "internal/fixture", "internal/quota", "internal/wire"},
	"bench/worker": {}, // programs that obey lines and report steps; what measures GPUs uses it
	// a program that measures the broker and the hook on real GPUs
	"bench/matrix": {"bench/worker", "enforcer/broker", "enforcer/jobs", "enforcer/schedule", "internal/quota"},

	// generators; no package imports them
	"alerts":     append([]string{"health", "health/derived", "health/incident", "collectors"}, themes...),
	"dashboards": append([]string{"health", "health/derived", "health/incident", "collectors"}, themes...),
}

// owners are the only directories that may import a library, by the start of its path.
var owners = map[string][]string{
	"github.com/alecthomas/kingpin":                          {"internal/agent"},
	"github.com/prometheus/exporter-toolkit/web/kingpinflag": {"internal/agent"},
	"go.yaml.in/yaml":                                        {"internal/config", "collectors/hosttest"},
	"github.com/google/pprof":                                {"enforcer/profile"},
	"github.com/rs/zerolog":                                  {"internal/agent"},
	"github.com/gdamore/tcell":                               {"exporter"},
	"github.com/coreos/go-systemd":                           {"internal/agent"},
	"github.com/prometheus/alertmanager/pkg/labels":          {"exporter", "health/notifier"},
	"github.com/prometheus/alertmanager/alert":               {"health/notifier"},
	"github.com/prometheus/alertmanager/api":                 {}, // tests alone: with go-openapi it is 1.7 MB
	"github.com/prometheus/client_golang/api":                {"exporter"},
	"github.com/prometheus/client_golang/api/prometheus":     {}, // brings json-iterator, 1.1 MB
	"github.com/go-openapi":                                  {},
	"github.com/klauspost/compress/gzhttp":                   {}, // brings zstd, 0.5 MB
	"github.com/grafana/grafana-foundation-sdk":              {"dashboards"},
	"google.golang.org/grpc":                                 {"deploy/kubernetes/kube"},
	"k8s.io":                                                 {"deploy/kubernetes/kube"},
	"github.com/NVIDIA/go-nvml": append([]string{"internal/agent", "collectors", "collectors/gpu",
		"collectors/gpu/sim", "collectors/gpu/sim/scenarios", "collectors/gpu/sim/stub", "collectors/hosttest", "health/diag"}, themes...),
}

// openers may open and close NVML; sim is opened.
var openers = []string{"collectors/gpu", "collectors/gpu/sim"}

// sources returns the parsed Go files by path, without tests.
func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != "." && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata" ||
			path == filepath.Join("deploy", "tools") || path == filepath.Join("deploy", "otlp")):
			return fs.SkipDir
		case e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, group := range f.Comments {
			if group.Pos() < f.Package && strings.Contains(group.List[0].Text, "//go:build ignore") {
				return nil
			}
		}
		files[filepath.ToSlash(path)] = f
		return nil
	})
	fixture.Must(t, err)
	return files
}

// violations returns the violations in f, a file of the package in dir.
func violations(dir string, f *ast.File) (all []string) {
	allowed, known := layers[dir]
	if !known {
		return []string{fmt.Sprintf("package directory %s is not in the table of layers: add it to layers in "+
			"layers_test.go with a reason, and to ARCHITECTURE.md, or put the file where it belongs", dir)}
	}
	nvml := false
	for _, i := range f.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		nvml = nvml || strings.HasPrefix(path, "github.com/NVIDIA/go-nvml")
		if own, ok := strings.CutPrefix(path, "gpusteward/"); ok && !slices.Contains(allowed, own) {
			all = append(all, fmt.Sprintf("%s may not import %s, only %q: have internal/agent hand it a function or "+
				"a channel, or change the table in layers_test.go", dir, own, allowed))
		}
		for library, by := range owners {
			if under(path, library) && !slices.Contains(by, dir) {
				all = append(all, fmt.Sprintf("%s may not import %s, only %q may: do there what needs it", dir,
					path, by))
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		s, ok := call.Fun.(*ast.SelectorExpr)
		if ok && nvml && !slices.Contains(openers, dir) && (s.Sel.Name == "Init" || s.Sel.Name == "InitWithFlags" ||
			s.Sel.Name == "Shutdown") {
			all = append(all, fmt.Sprintf("%s calls %s: only collectors/gpu opens and closes NVML, use gpu.Open and "+
				"Library.Close", dir, s.Sel.Name))
		}
		return true
	})
	return all
}

// under reports whether an import path is root, a version of it, or below it.
func under(path, root string) bool {
	rest, ok := strings.CutPrefix(path, root)
	return ok && (rest == "" || rest[0] == '/')
}

func TestLayersHold(t *testing.T) {
	t.Parallel()
	files := sources(t)
	for path, f := range files {
		for _, v := range violations(filepath.ToSlash(filepath.Dir(path)), f) {
			t.Errorf("%s: %s", path, v)
		}
	}
	for _, path := range []string{"main.go", "internal/agent/role.go", "exporter/exporter.go",
		"collectors/collector.go", "collectors/device/info.go", "collectors/gpu/library.go", "collectors/gpu/sim/host.go"} {
		fixture.Equal(t, files[path] == nil, false, "%s was not looked at", path)
	}
}

func TestLayersAreInLayers(t *testing.T) {
	t.Parallel()
	for dir, allowed := range layers {
		for _, own := range allowed {
			if _, ok := layers[own]; !ok || own == "alerts" || own == "dashboards" ||
				slices.Contains(layers[own], dir) {
				t.Errorf("layers: %s may import %s, which is not in the table, or imports it back", dir, own)
			}
		}
	}
}

// TestFoldersHaveNoCycle: imports between folders go one way only. Each folder
// in internal counts as a folder of its own.
func TestFoldersHaveNoCycle(t *testing.T) {
	t.Parallel()
	folder := func(dir string) string {
		parts := strings.SplitN(dir, "/", 3)
		if parts[0] == "internal" {
			return parts[0] + "/" + parts[1]
		}
		return parts[0]
	}
	uses := map[string][]string{}
	for dir, allowed := range layers {
		for _, own := range allowed {
			uses[folder(dir)] = append(uses[folder(dir)], folder(own))
		}
	}
	fixture.EqualSlices(t, fixture.Circle(uses), nil, "folders that import each other in a circle")
}
