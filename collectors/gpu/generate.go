//go:build ignore

// This program writes calls_gen.go, the guarded NVML calls that gpusteward
// makes, entries_gen.h, the functions of NVML that go-nvml refers to, and
// sim/stub/device_gen.go, a device that supports nothing, from the source of the
// go-nvml version that go.mod pins. A new call in the code has its wrapper after
// the next run. Run it with go generate; an argument is the output directory.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/importer"
	"go/parser"
	"go/printer"
	"go/token"
	"go/types"
	"io"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// reads are the prefixes of reading methods. Nothing else of a device, a vGPU
// or a MIG instance is wrapped, so the agent cannot change a GPU's settings. A
// cgroup's memory limit is not one of these; limits.go sets it by hand.
var reads = []string{"Get", "GpmMigSample", "GpmQuery", "GpmSample", "IsMig", "RegisterEvents", "ValidateInforom"}

// extra are calls guarded by a hand-written method, by the name of the constant
// that it uses: go-nvml hides them behind handlers.
var extra = []struct{ name, symbol string }{
	{"callC2CMode", "nvmlDeviceGetC2cModeInfoV"},
	{"callFabricInfo", "nvmlDeviceGetGpuFabricInfoV"},
	{"callSampleFree", "nvmlGpmSampleFree"},
	{"callTemperature", "nvmlDeviceGetTemperatureV"},
}

// wrapped lists go-nvml's interfaces, our guarded type for each, and the
// prefixes of the methods that may be called.
var wrapped = []struct {
	iface, impl, pointer, typ string
	begin                     []string
}{
	{"Device", "nvmlDevice", "*", "Device", reads},
	{"VgpuInstance", "nvmlVgpuInstance", "", "VGPU", reads},
	{"VgpuTypeId", "nvmlVgpuTypeId", "", "VGPUType", reads},
	{"GpuInstance", "nvmlGpuInstance", "", "Instance", reads},
	{"EventSet", "nvmlEventSet", "", "EventSet", []string{"Free", "Wait"}},
	{"Interface", "library", "*", "Library",
		[]string{"DeviceGetCount", "DeviceGetHandleByIndex", "EventSetCreate", "Gpm", "SystemGet"}},
}

// A wrapper is a guarded call that could be generated.
type wrapper struct {
	method  string // "Device.GetName"
	head    string // the declaration up to its body
	label   string // name of the call
	needs   string // symbols that it needs
	results string
	call    string
}

func main() {
	log.SetFlags(0)
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}/pkg/nvml", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		log.Fatalf("find go-nvml: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "*.go"))
	if err != nil {
		log.Fatal(err)
	}
	fset := token.NewFileSet()
	ifaces := map[string]*ast.InterfaceType{}
	bodies := map[string]*ast.BlockStmt{} // "nvmlDevice.GetName" -> body
	functions := map[string]bool{}        // nvmlX functions that call C
	alternatives := map[string][]string{} // versioned variable -> symbols
	entries := map[string]bool{}          // functions of NVML
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(fset, f, nil, 0)
		if err != nil {
			log.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if name := entry(n); name != "" {
					entries[name] = true
				}
			case *ast.TypeSpec:
				if t, ok := n.Type.(*ast.InterfaceType); ok {
					ifaces[n.Name.Name] = t
				}
			case *ast.FuncDecl:
				if n.Recv == nil {
					functions[n.Name.Name] = true
					bodies[n.Name.Name] = n.Body
					return true
				}
				recv := n.Recv.List[0].Type
				if star, ok := recv.(*ast.StarExpr); ok {
					recv = star.X
				}
				if id, ok := recv.(*ast.Ident); ok {
					bodies[id.Name+"."+n.Name.Name] = n.Body
				}
			case *ast.AssignStmt:
				// nvmlX = nvmlX_v2, in updateVersionedSymbols
				lhs, ok1 := n.Lhs[0].(*ast.Ident)
				rhs, ok2 := n.Rhs[0].(*ast.Ident)
				if ok1 && ok2 && n.Tok == token.ASSIGN && strings.HasPrefix(rhs.Name, lhs.Name+"_v") {
					alternatives[lhs.Name] = append(alternatives[lhs.Name], rhs.Name)
				}
			case *ast.ValueSpec:
				if len(n.Values) == 1 {
					if rhs, ok := n.Values[0].(*ast.Ident); ok && strings.HasPrefix(rhs.Name, n.Names[0].Name+"_v") {
						alternatives[n.Names[0].Name] = append(alternatives[n.Names[0].Name], rhs.Name)
					}
				}
			}
			return true
		})
	}

	// symbols finds the C functions that a Go function or method reaches: all
	// of them must exist, each in any of its versions.
	var symbols func(name string, seen map[string]bool) [][]string
	symbols = func(name string, seen map[string]bool) (out [][]string) {
		body := bodies[name]
		if body == nil || seen[name] {
			return nil
		}
		seen[name] = true
		ast.Inspect(body, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			switch fun := call.Fun.(type) {
			case *ast.Ident:
				called := strings.TrimSuffix(fun.Name, "Stub") // a hook for go-nvml's own tests
				if alts := alternatives[called]; alts != nil {
					var any []string
					for _, alt := range alts {
						for _, s := range symbols(alt, map[string]bool{}) {
							any = append(any, s...)
						}
					}
					slices.Sort(any)
					out = append(out, slices.Compact(any))
				} else if functions[called] {
					out = append(out, symbols(called, seen)...)
				}
			case *ast.SelectorExpr:
				if name := entry(call); name != "" {
					out = append(out, []string{name})
				}
			}
			return true
		})
		return out
	}

	var base bytes.Buffer
	var all []wrapper
	for _, w := range wrapped {
		for _, m := range ifaces[w.iface].Methods.List {
			name := m.Names[0].Name
			typ := m.Type.(*ast.FuncType)
			results := typ.Results
			last := results.List[len(results.List)-1]
			isReturn := fmt.Sprint(last.Type) == "Return"
			var params, args, outs, zeros []string
			for i, p := range typ.Params.List {
				params = append(params, fmt.Sprintf("a%d %s", i, qualified(fset, p.Type)))
				args = append(args, fmt.Sprintf("a%d", i))
			}
			for i, r := range results.List {
				v := fmt.Sprintf("r%d", i)
				if r == last && isReturn {
					v = "ret"
				}
				outs = append(outs, v+" "+qualified(fset, r.Type))
				zeros = append(zeros, v)
			}
			signature := fmt.Sprintf("%s(%s) (%s)", name, strings.Join(params, ", "), strings.Join(outs, ", "))
			if w.iface == "Device" {
				body := "return " + strings.Join(zeros, ", ")
				if isReturn {
					body = "ret = nvml.ERROR_NOT_SUPPORTED; " + body
				}
				fmt.Fprintf(&base, "func (Device) %s { %s }\n", signature, body)
			}
			if !isReturn || !slices.ContainsFunc(w.begin, func(p string) bool { return strings.HasPrefix(name, p) }) {
				continue
			}
			syms := symbols(w.impl+"."+name, map[string]bool{})
			if len(syms) == 0 {
				if !strings.HasPrefix(name, "Gpm") {
					continue // forwards to another method of the device
				}
				syms = [][]string{{"nvml" + name}} // through the GpmSample interface
			}
			var needs []string
			for _, s := range syms {
				if one := strings.Join(s, "|"); !slices.Contains(needs, one) {
					needs = append(needs, one)
				}
			}
			label := strings.Split(needs[0], "|")[0]
			if i := strings.LastIndex(label, "_v"); i > 0 && !strings.HasSuffix(name, label[i:]) {
				label = label[:i]
			}
			all = append(all, wrapper{
				method: w.typ + "." + name, head: fmt.Sprintf("func (d %s%s) %s", w.pointer, w.typ, signature),
				label: label, needs: strings.Join(needs, "&"),
				results: strings.Join(zeros, ", "), call: fmt.Sprintf("%s(%s)", name, strings.Join(args, ", ")),
			})
		}
	}
	to := "."
	if len(os.Args) > 1 {
		to = os.Args[1]
	}
	write(filepath.Join(to, "calls_gen.go"), guarded(called(all)))
	var list strings.Builder
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		fmt.Fprintf(&list, "ENTRY(%s)\n", name)
	}
	header := "/* Code generated by generate.go. DO NOT EDIT. */\n\n" + list.String()
	if err := os.WriteFile(filepath.Join(to, "entries_gen.h"), []byte(header), 0o644); err != nil {
		log.Fatal(err)
	}
	write(filepath.Join(to, "sim/stub/device_gen.go"),
		"// Package stub has an NVML device without any function, to embed in others.\n"+
			"package stub\n\nimport \"github.com/NVIDIA/go-nvml/pkg/nvml\"\n\n"+
			"// Device is an nvml.Device that answers \"not supported\" to everything.\n"+
			"type Device struct{}\n\nvar _ nvml.Device = Device{}\n\n"+base.String())
}

// entry returns the function of NVML that is called; empty: none is.
func entry(call *ast.CallExpr) string {
	fun, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || !strings.HasPrefix(fun.Sel.Name, "nvml") {
		return ""
	}
	if pkg, ok := fun.X.(*ast.Ident); !ok || pkg.Name != "C" {
		return ""
	}
	return fun.Sel.Name
}

// guarded returns the source of the wrappers, and of the table of their calls.
func guarded(all []wrapper) string {
	var methods bytes.Buffer
	var table, names []string
	for i, w := range all {
		_, name, _ := strings.Cut(w.method, ".")
		fmt.Fprintf(&methods, `
// %[1]s calls %[2]s.
%[3]s {
	if ret = d.enter(%[4]d); ret != nvml.SUCCESS {
		return
	}
	%[5]s = d.nv.%[6]s
	d.leave(%[4]d, ret)
	return
}
`, name, w.label, w.head, i, w.results, w.call)
		table = append(table, fmt.Sprintf("{%q, %q},", w.label, w.needs))
	}
	for _, e := range extra {
		names = append(names, fmt.Sprintf("%s = %d", e.name, len(table)))
		table = append(table, fmt.Sprintf("{%q, %q},", e.symbol, e.symbol))
	}
	return "package gpu\n\nimport \"github.com/NVIDIA/go-nvml/pkg/nvml\"\n\n" +
		"// calls lists every NVML call that this package can make: its name, and the\n" +
		"// symbols that must be in the library (\"|\" any of, \"&\" all of).\n" +
		"var calls = [...]struct{ name, symbols string }{\n" + strings.Join(table, "\n") + "\n}\n\nconst (\n" +
		strings.Join(names, "\n") + "\n)\n" + methods.String()
}

// called returns those wrappers that the program calls. It type-checks the
// program's packages with all wrappers present, and leaves other errors to the
// compiler.
func called(all []wrapper) (some []wrapper) {
	const own = "gpusteward/collectors/gpu"
	const format = "{{.ImportPath}}\t{{.Export}}\t{{.Dir}}\t{{.GoFiles}}"
	list, err := exec.Command("go", "list", "-e", "-deps", "-export", "-f", format, "gpusteward").Output()
	if err != nil {
		log.Fatalf("list the program's packages: %v", err)
	}
	exports, packages := map[string]string{}, map[string]*types.Package{}
	fset := token.NewFileSet()
	export := func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) }
	compiled := importer.ForCompiler(fset, "gc", export)
	used := map[string]bool{}
	for line := range strings.Lines(string(list)) { // each after its imports
		f := strings.Split(strings.TrimSpace(line), "\t")
		path, names := f[0], strings.Fields(strings.Trim(f[3], "[]"))
		exports[path] = f[1]
		if !strings.HasPrefix(path, "gpusteward/") || path == own+"/sim" {
			continue
		}
		var files []*ast.File
		for _, name := range names {
			if name == "calls_gen.go" {
				continue
			}
			tree, err := parser.ParseFile(fset, filepath.Join(f[2], name), nil, parser.SkipObjectResolution)
			if err != nil {
				log.Fatal(err)
			}
			files = append(files, tree)
		}
		if path == own {
			tree, err := parser.ParseFile(fset, "calls_gen.go", guarded(all), parser.SkipObjectResolution)
			if err != nil {
				log.Fatal(err)
			}
			files = append(files, tree)
		}
		info := types.Info{Uses: map[*ast.Ident]types.Object{}}
		conf := types.Config{Error: func(error) {}, Importer: importerFunc(func(path string) (*types.Package, error) {
			if p := packages[path]; p != nil {
				return p, nil
			}
			return compiled.Import(path)
		})}
		packages[path], _ = conf.Check(path, fset, files, &info)
		for _, object := range info.Uses {
			if f, ok := object.(*types.Func); ok && f.Pkg() != nil && f.Pkg().Path() == own {
				used[strings.NewReplacer(own+".", "", "(", "", ")", "", "*", "").Replace(f.FullName())] = true
			}
		}
	}
	return slices.DeleteFunc(all, func(w wrapper) bool { return !used[w.method] })
}

// An importerFunc is a types.Importer.
type importerFunc func(path string) (*types.Package, error)

func (f importerFunc) Import(path string) (*types.Package, error) { return f(path) }

// qualified prints a type of package nvml as seen from another package.
func qualified(fset *token.FileSet, t ast.Expr) string {
	var b bytes.Buffer
	switch t := t.(type) {
	case *ast.Ident:
		if t.IsExported() {
			return "nvml." + t.Name
		}
		return t.Name
	case *ast.StarExpr:
		return "*" + qualified(fset, t.X)
	case *ast.ArrayType:
		if t.Len == nil {
			return "[]" + qualified(fset, t.Elt)
		}
	}
	if err := printer.Fprint(&b, fset, t); err != nil {
		log.Fatal(err)
	}
	return b.String()
}

func write(name, body string) {
	src, err := format.Source([]byte("// Code generated by generate.go from go-nvml; DO NOT EDIT.\n\n" + body))
	if err != nil {
		log.Fatalf("%s: %v", name, err)
	}
	if err := os.WriteFile(name, src, 0o644); err != nil {
		log.Fatal(err)
	}
}
