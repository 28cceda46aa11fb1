package diag

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// special are the registers that PTX defines itself.
var special = []string{"%tid.x", "%ctaid.x", "%ntid.x", "%nctaid.x", "%smid", "%laneid"}

var (
	register = regexp.MustCompile(`%[a-z]+[0-9]*(?:\.x)?`)
	declared = regexp.MustCompile(`^\.reg \.[a-z0-9]+ (.*);$`)
	many     = regexp.MustCompile(`^(%[a-z]+)<([0-9]+)>$`)
	label    = regexp.MustCompile(`^([a-z]+):$`)
	branch   = regexp.MustCompile(`\bbra ([a-z]+);$`)
	argument = regexp.MustCompile(`^\.param \.(u32|u64) ([a-z]+),?$`)
	loaded   = regexp.MustCompile(`^ld\.param\.(u32|u64) %[a-z]+, \[([a-z]+)\];$`)
)

// faults returns the errors in a kernel's text: registers, labels and
// parameters that are used and not declared, or not used; unterminated
// statements. It also returns the number of parameters.
func faults(text string) (all []string, parameters int) {
	regs, used := map[string]bool{}, map[string]bool{}
	labels, targets := map[string]bool{}, map[string]bool{}
	params, read := map[string]string{}, map[string]string{}
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "//")
		line = strings.TrimSpace(line)
		if m := declared.FindStringSubmatch(line); m != nil {
			for name := range strings.SplitSeq(m[1], ", ") {
				if m := many.FindStringSubmatch(name); m != nil {
					n, _ := strconv.Atoi(m[2])
					for i := range n {
						regs[m[1]+strconv.Itoa(i)] = true
					}
				} else {
					regs[name] = true
				}
			}
			continue
		}
		if m := argument.FindStringSubmatch(line); m != nil {
			params[m[2]] = m[1]
			continue
		}
		if m := loaded.FindStringSubmatch(line); m != nil {
			read[m[2]] = m[1]
		}
		if m := label.FindStringSubmatch(line); m != nil {
			labels[m[1]] = true
			continue
		}
		if m := branch.FindStringSubmatch(line); m != nil {
			targets[m[1]] = true
		}
		for _, r := range register.FindAllString(line, -1) {
			used[r] = true
		}
		if line != "" && !strings.ContainsAny(line[len(line)-1:], ";({)}") && line[0] != '.' {
			all = append(all, "no end: "+line)
		}
	}
	for r := range used {
		if !regs[r] && !slices.Contains(special, r) {
			all = append(all, r+" is not declared")
		}
	}
	for r := range regs {
		if !used[r] {
			all = append(all, r+" is not used")
		}
	}
	for l := range targets {
		if !labels[l] {
			all = append(all, "no label "+l)
		}
	}
	for l := range labels {
		if !targets[l] && l != "compare" && l != "hash" {
			all = append(all, "nobody goes to "+l)
		}
	}
	for p, t := range params {
		if read[p] != t {
			all = append(all, p+" is read as "+read[p])
		}
	}
	for p := range read {
		if params[p] == "" {
			all = append(all, "no parameter "+p)
		}
	}
	return all, len(params)
}

func TestKernelsAreWhole(t *testing.T) {
	t.Parallel()
	kernels := map[string]string{"pattern": patternPTX}
	for _, u := range Units {
		kernels[u.Name] = u.PTX()
	}
	for name, text := range kernels {
		wrong, parameters := faults(text)
		for _, w := range wrong {
			t.Errorf("%s: %s", name, w)
		}
		if want := map[bool]int{true: 6, false: 5}[name == "pattern"]; parameters != want {
			t.Errorf("%s has %d parameters, its launch gives %d", name, parameters, want)
		}
		fixture.Contains(t, text, ".visible .entry "+name+"(", "%s is not the name of its kernel", name)
	}
}
