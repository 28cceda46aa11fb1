package policy

// An index finds the entries that may fit a process.
type index struct {
	exact map[string][]int
	ids   map[uint32][]int
	globs []glance
}

// A glance is a pattern of an entry.
type glance struct {
	pattern
	entry int
}

// add adds an entry to the lists in which matching processes look.
func (p *Policy) add(e entry) {
	n, kind := len(p.entries), e.primary()
	p.entries = append(p.entries, e)
	if kind == kinds {
		return
	}
	x := &p.index[kind]
	if x.exact == nil {
		x.exact, x.ids = map[string][]int{}, map[uint32][]int{}
	}
	for _, id := range e.ids[kind] {
		x.ids[id] = append(x.ids[id], n)
	}
	for _, pattern := range e.patterns[kind] {
		if pattern.rank == exact {
			x.exact[pattern.text] = append(x.exact[pattern.text], n)
		} else {
			x.globs = append(x.globs, glance{pattern, n})
		}
	}
}

// each calls f with the entries that may fit s by a kind. An entry may come
// more than once.
func (x *index) each(kind int, s *subject, f func(entry int)) {
	all := func(entries []int) {
		for _, e := range entries {
			f(e)
		}
	}
	switch kind {
	case byUser:
		all(x.ids[s.UID])
	case byGroup:
		all(x.ids[s.GID])
		for _, gid := range s.Groups {
			all(x.ids[gid])
		}
	default:
		text := s.text[kind]
		all(x.exact[text])
		for i := range x.globs {
			if g := &x.globs[i]; g.fits(text) {
				f(g.entry)
			}
		}
	}
}
