package exporter

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// A view is the content of `status --watch`, with the reader's position in it. It does
// no input and no output.
type view struct {
	style
	height int           // lines of the screen
	every  time.Duration // between questions to the agent; 0 is a second

	state State
	lost  error // why the agent does not answer now
	grids []grid

	section int // index of the grid that is shown
	places  []place
	filter  string
	typing  bool // keys change the filter
	helping bool // the keys are shown
}

// A place is where the reader is in one section.
type place struct {
	key    string // of the row under the cursor; empty: the first
	below  int    // lines from it to the cursor, which may be in its explanation
	top    int    // first line that is shown
	sort   int    // column; negative: the order of the agent
	upward bool   // the order is reversed
	open   string // key of the row that is unfolded
}

// maxFilter bounds a filter, in characters.
const maxFilter = 40

// maxHead is the most lines that the host has on the screen.
const maxHead = 4

// newView returns the view of a first state.
func newView(state State, st style) *view {
	v := &view{style: st}
	v.tell(state, nil)
	v.places = make([]place, len(v.grids))
	for i := range v.places {
		v.places[i].sort = -1
	}
	return v
}

// tell takes the next answer of the agent.
func (v *view) tell(state State, err error) {
	if v.lost = err; err == nil {
		v.state = state
	}
	v.lay()
}

// resize takes the size of the screen.
func (v *view) resize(width, height int) {
	v.width, v.height = max(minWidth, width), height
	v.lay()
}

func (v *view) lay() { v.grids = v.sections(v.state) }

// A bodyLine is a line of a section: a row, or a part of its explanation.
type bodyLine struct {
	key   string
	below int
	text  string
}

// body returns the lines of the section that is shown, and how many of its rows
// the filter leaves.
func (v *view) body() (lines []bodyLine, rows int) {
	g, p := v.grids[v.section], v.places[v.section]
	for _, r := range g.sorted(p.sort, p.upward) {
		if !r.matches(v.filter) {
			continue
		}
		rows++
		lines = append(lines, bodyLine{r.key, 0, strings.TrimSuffix(v.row(g, r), "\n")})
		if r.key != p.open {
			continue
		}
		for i, text := range slices.Collect(strings.Lines(r.more)) {
			lines = append(lines, bodyLine{r.key, i + 1, strings.TrimSuffix(text, "\n")})
		}
	}
	return lines, rows
}

// cursor returns the index of the line under the cursor: the same row as
// before, wherever it is now.
func (v *view) cursor(lines []bodyLine) int {
	p := v.places[v.section]
	for i, l := range lines {
		if l.key == p.key {
			for i+1 < len(lines) && lines[i].below < p.below && lines[i+1].key == p.key {
				i++
			}
			return i
		}
	}
	return 0
}

// move moves the cursor by so many lines.
func (v *view) move(by int) {
	lines, _ := v.body()
	if len(lines) > 0 {
		l := lines[min(max(v.cursor(lines)+by, 0), len(lines)-1)]
		v.places[v.section].key, v.places[v.section].below = l.key, l.below
	}
}

// page is the number of lines that a section has on the screen.
func (v *view) page() int { return max(1, v.height-len(v.head())-3) }

// head returns the lines about the host.
func (v *view) head() []string {
	var b strings.Builder
	v.host(&b, v.state)
	if v.lost != nil {
		b.Reset()
		b.WriteString(v.wrapped(red, "", v.lost.Error()))
		b.WriteString(v.line(cell{text: "Last answer: " + v.state.Time.UTC().Format("15:04:05 UTC") + ". Still asking.",
			paint: dim}))
	}
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	return lines[:min(len(lines), maxHead)]
}

// A binding is what a key does.
type binding struct {
	keys []string // names, or characters
	help string
	do   func(v *view)
}

// bindings are the keys, in the order of the help.
var bindings = []binding{
	{[]string{"Up", "k"}, "go up one line", func(v *view) { v.move(-1) }},
	{[]string{"Down", "j"}, "go down one line", func(v *view) { v.move(1) }},
	{[]string{"PgUp"}, "go up one page", func(v *view) { v.move(-v.page()) }},
	{[]string{"PgDn"}, "go down one page", func(v *view) { v.move(v.page()) }},
	{[]string{"Home", "g"}, "go to the first line", func(v *view) { v.move(-1 << 30) }},
	{[]string{"End", "G"}, "go to the last line", func(v *view) { v.move(1 << 30) }},
	{[]string{"Enter", " "}, "show or hide all about the line: every fault, MIG devices, the job", (*view).unfold},
	{[]string{"Tab"}, "show the next section", func(v *view) { v.turn(1) }},
	{[]string{"Backtab"}, "show the previous section", func(v *view) { v.turn(-1) }},
	{[]string{"/"}, "show only lines with a text: type it; Enter keeps it, Esc drops it",
		func(v *view) { v.typing = true }},
	{[]string{"Esc"}, "show all lines", func(v *view) { v.filter = "" }},
	{[]string{"s"}, "sort by the next column", (*view).sort},
	{[]string{"S"}, "reverse the order", func(v *view) {
		v.places[v.section].upward = !v.places[v.section].upward
	}},
	{[]string{"?"}, "show the keys, or hide them", func(v *view) { v.helping = true }},
}

// quits are the keys that end the view.
var quits = []string{"q", "Ctrl-C"}

// press handles a key. It reports whether the reader wants to end.
func (v *view) press(key string) (end bool) {
	switch {
	case key == "Ctrl-C":
		return true
	case v.typing:
		v.edit(key)
		return false
	case v.helping:
		v.helping = false
		return false
	case slices.Contains(quits, key):
		return true
	}
	for _, b := range bindings {
		if slices.Contains(b.keys, key) {
			b.do(v)
		}
	}
	return false
}

// edit changes the filter.
func (v *view) edit(key string) {
	last, size := utf8.DecodeLastRuneInString(key)
	switch n := utf8.RuneCountInString(v.filter); {
	case key == "Enter":
		v.typing = false
	case key == "Esc":
		v.typing, v.filter = false, ""
	case key == "Backspace" && n > 0:
		v.filter = string([]rune(v.filter)[:n-1])
	case size == len(key) && unicode.IsPrint(last) && n < maxFilter:
		v.filter += key
	}
}

// unfold shows what explains the row under the cursor, or hides it again.
func (v *view) unfold() {
	lines, _ := v.body()
	if len(lines) == 0 {
		return
	}
	p := &v.places[v.section]
	p.key, p.below = lines[v.cursor(lines)].key, 0
	if p.open == p.key {
		p.open = ""
	} else {
		p.open = p.key
	}
}

// turn shows the section that is so many further.
func (v *view) turn(by int) {
	v.section = (v.section + by + len(v.grids)) % len(v.grids)
}

// sort sorts by the next column, and after the last one in the agent's order.
func (v *view) sort() {
	p := &v.places[v.section]
	p.upward = false
	if p.sort++; p.sort == len(v.grids[v.section].columns) {
		p.sort = -1
	}
}

// screen returns the lines of the screen, and which of them is under the cursor;
// -1 for none.
func (v *view) screen() (lines []string, cursor int) {
	lines, cursor = v.head(), -1
	if v.helping {
		for _, b := range append(slices.Clone(bindings), binding{keys: quits, help: "end"}) {
			lines = append(lines, strings.TrimSuffix(v.line(cell{names(b.keys), 12, bold}, cell{text: b.help}), "\n"))
		}
		return v.footed(lines, "any key hides this", ""), -1
	}
	g, p := v.grids[v.section], &v.places[v.section]
	lines = append(lines, v.tabs(), strings.TrimSuffix(v.header(g, p.sort), "\n"))
	body, rows := v.body()
	if v.lost != nil { // old values are not shown as current
		body, rows = nil, 0
	}
	at, page := v.cursor(body), v.page()
	last := at // line that belongs to the row under the cursor
	for last+1 < len(body) && body[last+1].below > 0 {
		last++
	}
	p.top = min(max(p.top, last-page+1), at)
	p.top = max(0, min(p.top, len(body)-page))
	for i, l := range body[p.top:min(len(body), p.top+page)] {
		if p.top+i == at {
			cursor = len(lines)
		}
		lines = append(lines, l.text)
	}
	switch {
	case v.lost != nil:
	case len(g.rows) == 0:
		lines = append(lines, strings.TrimSuffix(v.line(cell{text: g.empty, paint: dim}), "\n"))
	case rows == 0:
		lines = append(lines, strings.TrimSuffix(v.line(cell{text: "No line has this text.", paint: dim}), "\n"))
	}
	return v.footed(lines, v.hint(), v.position(len(g.rows), rows, at, body)), cursor
}

// footed returns the lines with the last one at the bottom of the screen.
func (v *view) footed(lines []string, left, right string) []string {
	for len(lines) < v.height-1 {
		lines = append(lines, "")
	}
	lines = lines[:max(0, min(len(lines), v.height-1))]
	wide := v.width - utf8.RuneCountInString(right) - 1
	return append(lines, strings.TrimSuffix(v.line(cell{left, wide, dim}, cell{text: right, paint: dim}), "\n"))
}

// tabs returns the line with the titles of the sections.
func (v *view) tabs() string {
	var cells []cell
	for i, g := range v.grids {
		c := cell{text: fmt.Sprintf(" %s %d ", g.title, len(g.rows))}
		if i == v.section {
			c.text, c.paint = "["+strings.TrimSpace(c.text)+"]", bold
		}
		cells = append(cells, c)
	}
	return strings.TrimSuffix(v.line(cells...), "\n")
}

// hint says what the reader can do.
func (v *view) hint() string {
	if v.typing {
		return "Filter: " + v.filter + "_"
	}
	return "q end  Tab section  / filter  s sort  Enter more  ? all keys"
}

// position says what part of the rows is shown, and in which order.
func (v *view) position(all, rows, at int, body []bodyLine) string {
	p := v.places[v.section]
	var says []string
	if p.sort >= 0 {
		says = append(says, "by "+cmp.Or(v.grids[v.section].columns[p.sort].title, "index"))
	}
	if p.upward {
		says = append(says, "reversed")
	}
	if v.filter != "" && !v.typing {
		says = append(says, "/"+v.filter)
	}
	n := 0
	for i := range body {
		if body[i].below == 0 && i <= at {
			n++
		}
	}
	text := fmt.Sprintf("%d/%d", n, rows)
	if rows < all {
		text += fmt.Sprintf(" of %d", all)
	}
	return strings.Join(append(says, text), "  ")
}

// names writes the names of keys.
func names(keys []string) string {
	return strings.NewReplacer("Backtab", "Shift-Tab", "  ", " Space").Replace(strings.Join(keys, " "))
}
