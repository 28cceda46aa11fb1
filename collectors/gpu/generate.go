//go:build ignore

// Writes calls_gen.go, the guarded NVML calls of this package, and
// sim/unsupported_gen.go, a device that supports nothing, from the source of
// the go-nvml version that go.mod pins. Run it with go generate.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/printer"
	"go/token"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// reads are the prefixes of methods that only read. Nothing else is wrapped,
// so the agent cannot change a GPU's settings; a cgroup's memory limit, which
// is none, is written by hand in limits.go.
var reads = []string{"Get", "GpmMigSample", "GpmQuery", "GpmSample", "IsMig", "RegisterEvents", "ValidateInforom"}

// extra are calls that a hand-written method guards, by the name of the
// constant that it guards them with: go-nvml hides them behind handlers.
var extra = []struct{ name, symbol string }{
	{"callFabricInfo", "nvmlDeviceGetGpuFabricInfoV"},
	{"callSampleFree", "nvmlGpmSampleFree"},
	{"callTemperature", "nvmlDeviceGetTemperatureV"},
}

// wrapped lists go-nvml's interfaces, the receiver that guards each, and,
// where not everything is wanted, the methods.
var wrapped = []struct {
	iface, impl, receiver string
	only                  []string
}{
	{"Device", "nvmlDevice", "(d *Device)", nil},
	{"VgpuInstance", "nvmlVgpuInstance", "(d VGPU)", nil},
	{"VgpuTypeId", "nvmlVgpuTypeId", "(d VGPUType)", []string{"GetName"}},
	{"GpuInstance", "nvmlGpuInstance", "(d Instance)", []string{"GetInfo"}},
	{"EventSet", "nvmlEventSet", "(d EventSet)", []string{"Free", "Wait"}},
	{"Interface", "library", "(d *Library)", []string{
		"DeviceGetCount", "DeviceGetHandleByIndex", "EventSetCreate", "GpmMetricsGet", "GpmSampleAlloc",
		"SystemGetConfComputeGpusReadyState", "SystemGetConfComputeKeyRotationThresholdInfo", "SystemGetConfComputeState",
		"SystemGetCudaDriverVersion", "SystemGetDriverBranch", "SystemGetDriverVersion", "SystemGetNVMLVersion",
	}},
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
	// of them must be there, each in any of its versions.
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
				called := strings.TrimSuffix(fun.Name, "Stub") // a seam of go-nvml's own tests
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
				if pkg, ok := fun.X.(*ast.Ident); ok && pkg.Name == "C" && strings.HasPrefix(fun.Sel.Name, "nvml") {
					out = append(out, []string{fun.Sel.Name})
				}
			}
			return true
		})
		return out
	}

	var calls, base bytes.Buffer
	var table []string
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
			if w.iface == "Device" {
				body := "return " + strings.Join(zeros, ", ")
				if isReturn {
					body = "ret = nvml.ERROR_NOT_SUPPORTED; " + body
				}
				fmt.Fprintf(&base, "func (unsupported) %s(%s) (%s) { %s }\n", name, strings.Join(params, ", "), strings.Join(outs, ", "), body)
			}
			wanted := isReturn && slices.ContainsFunc(reads, func(p string) bool { return strings.HasPrefix(name, p) })
			if w.only != nil {
				wanted = slices.Contains(w.only, name)
			}
			if !wanted {
				continue
			}
			syms := symbols(w.impl+"."+name, map[string]bool{})
			if len(syms) == 0 {
				if !strings.HasPrefix(name, "Gpm") {
					continue // forwards to another of the device's methods
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
			fmt.Fprintf(&calls, `
// %[2]s calls %[3]s.
func %[1]s %[2]s(%[4]s) (%[5]s) {
	if ret = d.enter(%[6]d); ret != nvml.SUCCESS {
		return
	}
	%[7]s = d.nv.%[2]s(%[8]s)
	d.leave(%[6]d, ret)
	return
}
`, w.receiver, name, label, strings.Join(params, ", "), strings.Join(outs, ", "), len(table), strings.Join(zeros, ", "), strings.Join(args, ", "))
			table = append(table, fmt.Sprintf("{%q, %q},", label, strings.Join(needs, "&")))
		}
	}
	var names []string
	for _, e := range extra {
		names = append(names, fmt.Sprintf("%s = %d", e.name, len(table)))
		table = append(table, fmt.Sprintf("{%q, %q},", e.symbol, e.symbol))
	}
	write("calls_gen.go", "package gpu\n\nimport \"github.com/NVIDIA/go-nvml/pkg/nvml\"\n\n"+
		"// calls lists every NVML call that this package can make: its name, and the\n// symbols that must be in the library (\"|\" any of, \"&\" all of).\n"+
		"var calls = [...]struct{ name, symbols string }{\n"+strings.Join(table, "\n")+"\n}\n\nconst (\n"+strings.Join(names, "\n")+"\n)\n"+calls.String())
	write("sim/unsupported_gen.go", "package sim\n\nimport \"github.com/NVIDIA/go-nvml/pkg/nvml\"\n\n"+
		"// unsupported is an nvml.Device that answers \"not supported\" to everything.\ntype unsupported struct{}\n\nvar _ nvml.Device = unsupported{}\n\n"+base.String())
}

// qualified prints a type of package nvml as another package names it.
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
