package policy

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"gpusteward/collectors/host"
	"gpusteward/enforcer/broker"
)

// Bounds of a table.
const (
	mostTenants    = 256
	mostSelectors  = 32   // of a tenant
	mostPatterns   = 4096 // of all tenants
	longestPattern = 256  // bytes
)

// A Selector selects processes for a tenant: each of its keys must fit with at
// least one entry. All except users and groups are patterns: * is any text,
// including slashes, and ? one character.
type Selector struct {
	Units         []string // systemd's services and scopes, without those of users' own systemd
	Slices        []string // systemd slices that contain the unit
	Pods          []string // namespace/name
	Containers    []string // names; names of a pod's containers only together with Pods
	SlurmUsers    []string // of the job, from its record
	SlurmAccounts []string // the same
	Users         []string // names or numbers
	Groups        []string // the same, of any of the process's groups
	Executables   []string // path of the program
	Workloads     []string // key of host.Workload
}

// Kinds of selectors in order of importance: a later one decides only if all
// before it are equal.
const (
	byWorkload = iota
	byPod
	byContainer
	byUnit
	bySlice
	bySlurmUser
	bySlurmAccount
	byExecutable
	byUser
	byGroup
	kinds
)

// keys are the names of the kinds in configuration.
var keys = [kinds]string{"workloads", "pods", "containers", "units", "slices", "slurm_users", "slurm_accounts",
	"executables", "users", "groups"}

// lists returns the lists of a selector by kind.
func (s *Selector) lists() [kinds][]string {
	return [kinds][]string{s.Workloads, s.Pods, s.Containers, s.Units, s.Slices, s.SlurmUsers, s.SlurmAccounts,
		s.Executables, s.Users, s.Groups}
}

// A set is a set of kinds.
type set uint16

func (s set) has(kind int) bool { return s>>kind&1 != 0 }

// of returns the kinds for which a selector has lists.
func (s *Selector) of() (all set) {
	for kind, list := range s.lists() {
		if list != nil {
			all |= 1 << kind
		}
	}
	return all
}

// forms are the patterns that a kind's texts follow: a pattern that has nothing
// in common with them selects nothing.
var forms = [kinds][]string{
	byWorkload:   {"pod:?*/?*", "container:?*", "unit:?*", "slurm:?*", "job:?*/?*", "user:?*"},
	byPod:        {"?*/?*"},
	byUnit:       {"?*.service", "?*.scope"},
	bySlice:      {"?*.slice"},
	byExecutable: {"/?*"},
}

// strange are the characters that no name of a kind has. Those of other languages
// of patterns select nothing here.
var strange = [kinds]string{byPod: languages, byContainer: languages, byUnit: languages + "/", bySlice: languages + "/"}

const languages = "[]{}()^$|"

// workloadOf is the kind of workload that a kind of selector is about, by
// host's names; empty: any.
var workloadOf = [kinds]string{byPod: host.KindPod, byContainer: host.KindContainer, byUnit: host.KindUnit,
	bySlice:     host.KindUnit,
	bySlurmUser: host.KindSlurm, bySlurmAccount: host.KindSlurm}

// check reports the first key that selects nothing.
func (s *Selector) check() error {
	has := s.of()
	if has == 0 {
		return fmt.Errorf("it has no key and would select every process: add one of %s", strings.Join(keys[:], ", "))
	}
	for kind, list := range s.lists() {
		if list != nil && len(list) == 0 {
			return fmt.Errorf("%s: an empty list selects nothing: fill it or remove the key", keys[kind])
		}
		for i, text := range list {
			if err := checkPattern(kind, list[:i], text); err != nil {
				return fmt.Errorf("%s: %w", keys[kind], err)
			}
		}
	}
	return s.consistent(has)
}

func checkPattern(kind int, before []string, text string) error {
	switch {
	case text == "":
		return fmt.Errorf("entry %d is empty and selects nothing: remove it", len(before))
	case len(text) > longestPattern:
		return fmt.Errorf("%.20q... has %d bytes; at most %d are allowed", text, len(text), longestPattern)
	case !utf8.ValidString(text):
		return fmt.Errorf("%q is not UTF-8", text)
	case slices.Contains(before, text):
		return fmt.Errorf("%q is listed twice: remove one", text)
	}
	if i := strings.IndexAny(text, strange[kind]); i >= 0 {
		return fmt.Errorf("%q selects nothing: no name has %q, and only * and ? stand for other text", text, text[i:i+1])
	}
	if len(forms[kind]) > 0 && !fitsAny(forms[kind], text) {
		return fmt.Errorf("%q selects nothing: values look like %s, where * is any text", text,
			strings.ReplaceAll(strings.Join(forms[kind], " or "), "?*", "*"))
	}
	if user, is := strings.CutPrefix(text, "user:"); is && kind == byWorkload && strings.Trim(user, "0123456789*?") != "" {
		return fmt.Errorf("%q selects nothing: a number follows user:; write users: [%s]", text, user)
	}
	return nil
}

// fitsAny reports whether text has something in common with one of patterns.
func fitsAny(patterns []string, text string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		_, ok := overlap(p, text)
		return ok
	})
}

// consistent reports keys that no process can fit together.
func (s *Selector) consistent(has set) error {
	first := -1
	for kind, of := range workloadOf {
		if of == "" || !has.has(kind) || kind == byContainer && has.has(byPod) {
			continue
		}
		if first >= 0 && workloadOf[first] != of {
			return fmt.Errorf("%s: no process belongs to a %s and a %s at once: split it into two entries", keys[kind],
				workloadOf[first], of)
		}
		first = kind
	}
	if first < 0 || !has.has(byWorkload) {
		return nil
	}
	if !fitsAny(s.Workloads, workloadOf[first]+":*") {
		return fmt.Errorf("workloads: it matches no %s, to which %s applies: split it into two entries",
			workloadOf[first],
			keys[first])
	}
	return nil
}

// A subject is a process from the view of selectors.
type subject struct {
	broker.Facts
	has   set           // kinds for which it has a text
	text  [kinds]string // by kind
	inPod bool
}

// newSubject returns the subject of a process with a workload, which the caller
// keeps.
func newSubject(f broker.Facts, w *host.Workload) subject {
	s := subject{Facts: f, has: 1<<byWorkload | 1<<byExecutable | 1<<byUser | 1<<byGroup}
	s.text[byWorkload], s.text[byExecutable] = w.Key, f.Exe
	put := func(kind int, text string) {
		s.has |= 1 << kind
		s.text[kind] = text
	}
	switch w.Kind {
	case host.KindPod:
		s.inPod = true
		put(byContainer, w.Container)
		if put(byPod, ""); w.Pod != "" { // unnamed until the name is known
			put(byPod, w.Namespace+"/"+w.Pod)
		}
	case host.KindContainer:
		// all names below user.slice are the user's own, and the user's number
		// is in the key
		if !strings.Contains(w.Key, "/") {
			put(byContainer, w.Container)
		}
	case host.KindUnit:
		put(byUnit, w.Unit)
		put(bySlice, w.Slice)
	case host.KindSlurm:
		if w.User != "" && w.Recorded { // otherwise they are what the job's user wrote
			put(bySlurmUser, w.User)
		}
		if w.Account != "" && w.Recorded {
			put(bySlurmAccount, w.Account)
		}
	}
	return s
}
