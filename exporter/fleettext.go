package exporter

import (
	"fmt"
	"slices"
	"strings"
)

// fleet returns f as text, with at most so many hosts and jobs; 0: all. Hosts that are
// well are only counted.
func (st style) fleet(f Fleet, most int) string {
	if most == 0 {
		most = len(f.Hosts) + len(f.Jobs)
	}
	var b strings.Builder
	st.counts(&b, f)
	for _, n := range f.Notes {
		b.WriteString(st.wrapped(yellow, "", n))
	}
	bad := slices.IndexFunc(f.Hosts, func(h FleetHost) bool { return h.State == "ok" })
	if bad < 0 {
		bad = len(f.Hosts)
	}
	clusters := f.clusters()
	wide := len("HOST")
	for _, h := range f.Hosts[:min(bad, most)] {
		wide = min(max(wide, len(h.name(clusters))), st.width/2)
	}
	const others = len(" critical     8/8 ")
	hosts := grid{columns: []column{{"HOST", wide}, {"STATE", 8}, {"GPUS", -7}, {"PAGE", st.width - wide - others}}}
	for _, h := range f.Hosts[:bad] {
		hosts.rows = append(hosts.rows, st.fleetHost(h.name(clusters), h, hosts.columns[3].width))
	}
	if len(hosts.rows) > 0 {
		b.WriteByte('\n')
		st.grid(&b, hosts, most)
	}
	b.WriteByte('\n')
	if len(f.Jobs) == 0 {
		b.WriteString(st.line(cell{text: "No job under the hook hangs or lags.", paint: dim}))
	}
	for i, j := range f.Jobs {
		if i == most {
			b.WriteString(st.line(cell{text: fmt.Sprintf("and %d more", len(f.Jobs)-i), paint: dim}))
			break
		}
		st.fleetJob(&b, j)
	}
	return b.String()
}

// counts writes how many hosts and GPUs there are, and how many hosts in each state.
func (st style) counts(b *strings.Builder, f Fleet) {
	number, listed, expected := f.count()
	b.WriteString(st.line(cell{text: plural(len(f.Hosts), "host") + ",", paint: bold},
		cell{text: fmt.Sprintf("%d of %s,", listed, plural(expected, "GPU"))},
		cell{text: f.Time.Format("15:04:05 UTC"), paint: dim}))
	var cells []cell
	for _, s := range fleetStates {
		if n := number[s.name]; n > 0 {
			cells = append(cells, cell{text: fmt.Sprintf("%d %s,", n, s.name), paint: faultPaints[s.severity]})
		}
	}
	last := &cells[len(cells)-1]
	last.text = strings.TrimSuffix(last.text, ",")
	b.WriteString(st.line(cells...))
}

// fleetHost returns the row of a host. Its page is below the row if that has no room.
func (st style) fleetHost(name string, h FleetHost, room int) row {
	paint, page, more := faultPaints[fleetStates[rank(h.State)].severity], h.Page, ""
	if len(page) > room {
		page, more = "", st.line(cell{text: "   " + page})
	}
	if severity, text := h.said(); text != "" {
		more += st.wrapped(faultPaints[severity], "   ", text)
	}
	return row{fields: []field{{text: name, paint: paint}, {text: h.State, paint: paint}, {text: h.gpus()}, {text: page}},
		more: more}
}

// fleetJob writes what a job waits for.
func (st style) fleetJob(b *strings.Builder, j FleetJob) {
	severity, text := j.said()
	b.WriteString(st.line(cell{text: j.name(), paint: bold}, cell{text: "on " + j.on()}))
	b.WriteString(st.wrapped(faultPaints[severity], "  ", text))
}
