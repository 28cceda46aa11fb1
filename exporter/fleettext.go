package exporter

import (
	"cmp"
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
	clusters := slices.ContainsFunc(f.Hosts, func(h FleetHost) bool { return h.Cluster != f.Hosts[0].Cluster })
	bad := slices.IndexFunc(f.Hosts, func(h FleetHost) bool { return h.State == "ok" })
	if bad < 0 {
		bad = len(f.Hosts)
	}
	name := func(h FleetHost) string {
		if clusters {
			return h.Cluster + "/" + h.Host
		}
		return h.Host
	}
	wide := len("HOST")
	for _, h := range f.Hosts[:min(bad, most)] {
		wide = min(max(wide, len(name(h))), st.width/2)
	}
	const others = len(" critical     8/8 ")
	hosts := grid{columns: []column{{"HOST", wide}, {"STATE", 8}, {"GPUS", -7}, {"PAGE", st.width - wide - others}}}
	for _, h := range f.Hosts[:bad] {
		hosts.rows = append(hosts.rows, st.fleetHost(name(h), h, hosts.columns[3].width))
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
	number, listed, expected := map[string]int{}, 0, 0
	for _, h := range f.Hosts {
		number[h.State]++
		if h.Expected != nil {
			expected += *h.Expected
			if h.GPUs != nil {
				listed += *h.GPUs
			}
		}
	}
	b.WriteString(st.line(cell{text: plural(len(f.Hosts), "host") + ",", paint: bold},
		cell{text: fmt.Sprintf("%d of %s,", listed, plural(expected, "GPU"))},
		cell{text: f.Time.Format("15:04:05 UTC"), paint: dim}))
	var cells []cell
	for _, s := range fleetStates {
		if n := number[s.name]; n > 0 {
			cells = append(cells, cell{text: fmt.Sprintf("%d %s,", n, s.name), paint: s.paint})
		}
	}
	last := &cells[len(cells)-1]
	last.text = strings.TrimSuffix(last.text, ",")
	b.WriteString(st.line(cells...))
}

// fleetHost returns the row of a host. Its page is below the row if that has no room.
func (st style) fleetHost(name string, h FleetHost, room int) row {
	paint, gpus, page, more := fleetStates[rank(h.State)].paint, "", h.Page, ""
	if len(page) > room {
		page, more = "", st.line(cell{text: "   " + page})
	}
	if h.GPUs != nil && h.Expected != nil {
		gpus = fmt.Sprintf("%d/%d", *h.GPUs, *h.Expected)
	}
	var said []string
	for _, f := range h.Faults {
		text := strings.TrimSpace(f.Severity + " " + f.Check)
		if f.GPUs != nil {
			text += " on GPU " + ranges(f.GPUs)
		}
		said = append(said, text)
	}
	switch {
	case h.State == "down":
		more += st.wrapped(red, "   ", "The agent does not answer: its GPUs are not watched.")
	case h.State == "unknown" && said == nil:
		more += st.wrapped(yellow, "   ", "The agent answers, but a part of it has no data.")
	case said != nil:
		more += st.wrapped(cmp.Or(faultPaints[h.Faults[0].Severity], paint), "   ", strings.Join(said, "; "))
	}
	return row{fields: []field{{text: name, paint: paint}, {text: h.State, paint: paint}, {text: gpus}, {text: page}}, more: more}
}

// fleetJob writes what a job waits for.
func (st style) fleetJob(b *strings.Builder, j FleetJob) {
	name := j.Workload
	if j.User != "" {
		name += " (" + j.User + ")"
	}
	on := j.Host
	if len(j.Hosts) > 1 {
		on = plural(len(j.Hosts), "host")
	}
	b.WriteString(st.line(cell{text: name, paint: bold}, cell{text: "on " + on}))
	place, paint, text := onGPU(j.GPU), yellow, ""
	if len(j.Hosts) > 1 {
		place += " of " + j.Host
	}
	switch {
	case j.Hang != nil:
		paint, text = red, j.Hang.text(place)
	case j.Straggler != nil:
		text = j.Straggler.text(place)
	default:
		text = j.Slow.text(place)
	}
	b.WriteString(st.wrapped(paint, "  ", text))
}
