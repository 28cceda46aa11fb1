package policy

import (
	"fmt"
	"slices"
	"strings"
)

// A specificity says how closely a selector fits a process: for each kind 0
// without a list, 1 plus the literal characters of the best pattern, or exact.
// For groups, 2 is the process's own group and 1 another.
type specificity [kinds]uint16

// compare orders specificities, the least specific first.
func (s specificity) compare(o specificity) int { return slices.Compare(s[:], o[:]) }

// An entry is a selector prepared for many processes.
type entry struct {
	tenant   int // its index in the table
	at       int // its index in the tenant's list
	has      set
	patterns [kinds][]pattern
	ids      [kinds][]uint32 // of users and groups that the host knows
	unknown  [kinds][]string // those that it does not know
}

// primary returns the most important kind of the entry.
func (e *entry) primary() int {
	for kind := range kinds {
		if e.has.has(kind) {
			return kind
		}
	}
	return kinds // the Table did not pass Check
}

// fits returns how closely the selector fits a process, and whether it does.
func (e *entry) fits(s *subject) (rank specificity, ok bool) {
	if e.has&^s.has != 0 || s.inPod && e.has.has(byContainer) && !e.has.has(byPod) {
		return rank, false
	}
	for kind := range kinds {
		if !e.has.has(kind) {
			continue
		}
		if rank[kind], _ = e.best(kind, s); rank[kind] == 0 {
			return rank, false
		}
	}
	return rank, true
}

// best returns how closely a list fits a process, or 0, and the pattern or
// number that does.
func (e *entry) best(kind int, s *subject) (rank uint16, by string) {
	switch kind {
	case byUser:
		if slices.Contains(e.ids[kind], s.UID) {
			return exact, ""
		}
	case byGroup:
		if slices.Contains(e.ids[kind], s.GID) {
			return 2, ""
		}
		if slices.ContainsFunc(s.Groups, func(gid uint32) bool { return slices.Contains(e.ids[kind], gid) }) {
			return 1, ""
		}
	default:
		for i := range e.patterns[kind] {
			if p := &e.patterns[kind][i]; p.rank > rank && p.fits(s.text[kind]) {
				rank, by = p.rank, p.text
			}
		}
	}
	return rank, by
}

// tie reports whether a process may fit both entries equally closely, and
// describes one. Two groups are no tie: a process has many, and the table's
// order decides among all but its own.
func (e *entry) tie(o *entry) (example string, ok bool) {
	if e.has != o.has || e.has == 0 {
		return "", false
	}
	var all []string
	for kind := range kinds {
		if !e.has.has(kind) {
			continue
		}
		text, ok := e.same(o, kind)
		if !ok {
			return "", false
		}
		all = append(all, keys[kind]+" "+text)
	}
	return strings.Join(all, ", "), true
}

// same returns an example that fits a kind's lists of both entries equally
// closely.
func (e *entry) same(o *entry, kind int) (example string, ok bool) {
	for _, id := range e.ids[kind] {
		if slices.Contains(o.ids[kind], id) {
			return fmt.Sprint(id), true
		}
	}
	for _, name := range e.unknown[kind] {
		if slices.Contains(o.unknown[kind], name) {
			return fmt.Sprintf("%q", name), true
		}
	}
	for _, p := range e.patterns[kind] {
		for _, q := range o.patterns[kind] {
			if p.rank != q.rank || p.rank == exact && p.text != q.text {
				continue
			}
			if example, ok := common(kind, p.text, q.text); ok {
				return fmt.Sprintf("%q", example), true
			}
		}
	}
	return "", false
}

// common returns a text of a kind that fits both patterns, and whether there is
// one. A pod's name has one slash: if both patterns have one, the parts before
// and after it are compared separately.
func common(kind int, a, b string) (example string, ok bool) {
	if kind == byPod && strings.Count(a, "/") == 1 && strings.Count(b, "/") == 1 {
		aSpace, aName, _ := strings.Cut(a, "/")
		bSpace, bName, _ := strings.Cut(b, "/")
		if example, ok = overlap(aSpace, bSpace); !ok {
			return "", false
		}
		name, ok := overlap(aName, bName)
		return example + "/" + name, ok
	}
	return overlap(a, b)
}
