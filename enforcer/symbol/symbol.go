// Package symbol makes mangled names of kernels (Itanium C++ ABI) short enough for people. It is no demangler: it finds
// the words in a name, not its types.
package symbol

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"gpusteward/internal/wire"
)

// Short returns the qualified name in a mangled one, without arguments; any other name as it is.
func Short(name string) string {
	short, arguments := split(name)
	if arguments != "" {
		short += "<...>"
	}
	return short
}

// mostOfGraph bounds what Launched writes of the name of a kernel in a graph, in bytes.
const mostOfGraph = 80

// Launched returns the name of the kernel or graph that an event of a process launched, as the process tells it: of a
// kernel as its compiler wrote it, of a graph those of its kernels. It is empty if there is none.
func Launched(c wire.Crash, e wire.Event) string {
	if e.Kind != wire.EventGraph {
		return c.Kernel(e.ID, e.At)
	}
	nodes, kernels := c.Graph(e.ID, e.At)
	var parts []string
	for _, k := range kernels {
		name := cmp.Or(Long(c.Kernel(k.ID, e.At)), wire.Unnamed(wire.EventLaunch, k.ID))
		parts = append(parts, fmt.Sprintf("%d x %s", k.Nodes, name[:min(len(name), mostOfGraph)]))
		nodes -= k.Nodes
	}
	if len(parts) == 0 {
		return ""
	}
	if nodes > 0 {
		parts = append(parts, fmt.Sprintf("%d more", nodes))
	}
	return "graph of " + strings.Join(parts, ", ")
}

// mostArguments bounds what Long writes of a kernel's template arguments, in bytes.
const mostArguments = 100

// Long returns Short's name with the words in the template arguments: libraries have many kernels of one name, which
// differ in nothing else.
func Long(name string) string {
	long, rest := split(name)
	if rest == "" {
		return long
	}
	all := strings.Join(words(rest), ", ")
	if len(all) > mostArguments {
		all = all[:mostArguments] + "..."
	}
	if all == "" {
		all = "..."
	}
	return long + "<" + all + ">"
}

// split returns the qualified name in a mangled one, and the mangled text from its template arguments on, if it has
// any.
func split(name string) (qualified, arguments string) {
	rest, nested := strings.CutPrefix(name, "_ZN")
	if !nested {
		if rest, nested = strings.CutPrefix(name, "_Z"); !nested {
			return name, ""
		}
	}
	var parts []string
	for {
		part, after := word(rest)
		if part == "" {
			break
		}
		parts, rest = append(parts, part), after
	}
	switch {
	case len(parts) == 0:
		return name, ""
	case strings.HasPrefix(rest, "I"):
		return strings.Join(parts, "::"), rest
	}
	return strings.Join(parts, "::"), ""
}

// word cuts a name, which follows its length, from the begin of a mangled text; empty: there is none.
func word(text string) (name, rest string) {
	digits := len(text) - len(strings.TrimLeft(text, "0123456789"))
	n, err := strconv.Atoi(text[:digits])
	if err != nil || n < 1 || n > len(text)-digits || text[0] == '0' {
		return "", text
	}
	name, rest = text[digits:digits+n], text[digits+n:]
	if strings.HasPrefix(name, "_GLOBAL__N_") {
		name = "(anonymous)"
	}
	return name, rest
}

var (
	number = regexp.MustCompile(`^L[a-z](n?[0-9]+)E`)                  // an argument that is a number
	value  = regexp.MustCompile(`^n?[0-9]+E`)                          // of an argument whose type has a name
	other  = regexp.MustCompile(`^(?:[ST][0-9A-Z]*_|S[a-z]|cl|Ul|_Z)`) // what was named before, std::, a lambda
	types  = map[byte]string{'f': "float", 'd': "double", 'i': "int", 'j': "unsigned", 'l': "long", 'b': "bool",
		'h': "uchar", 'a': "schar", 'c': "char", 's': "short", 'x': "long long", 'm': "ulong"}
)

// words returns the names, numbers and basic types in template arguments; of a qualified name the last part.
func words(text string) (all []string) {
	open := []byte{0} // what has begun and not ended
	last := false     // a part of a qualified name came just before
	for text != "" {
		c, in := text[0], open[len(open)-1]
		if m := number.FindStringSubmatch(text); m != nil {
			all, text, last = append(all, strings.Replace(m[1], "n", "-", 1)), text[len(m[0]):], false
			continue
		}
		if m := value.FindString(text); m != "" && in == 'L' {
			m = m[:len(m)-1]
			all, text = append(all, strings.Replace(m, "n", "-", 1)), text[len(m):]
			continue
		}
		if name, rest := word(text); name != "" {
			if last {
				all = all[:len(all)-1]
			}
			all, text, last = append(all, name), rest, in == 'N'
			continue
		}
		if m := other.FindString(text); m != "" {
			if m == "Ul" {
				open = append(open, 'U')
			}
			text = text[len(m):]
			continue
		}
		last = false
		switch {
		case strings.IndexByte("INJXFZL", c) >= 0:
			open = append(open, c)
		case c == 'E':
			if open = open[:len(open)-1]; len(open) < 2 {
				return all
			}
		case types[c] != "":
			all = append(all, types[c])
		}
		text = text[1:]
	}
	return all
}
