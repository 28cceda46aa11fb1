package exporter

import (
	"bytes"
	"encoding/binary"
	"strings"
)

// A part is the section of a response about one family. A section about no
// family has no name.
type part struct {
	name string // name of the family
	text []byte
}

// chosen returns the sections of a response about the families with these
// names.
func (p *cachedResponse) chosen(names []string) *cachedResponse {
	wanted := map[string]bool{"": true}
	for _, name := range names {
		wanted[name] = true
	}
	cut := &cachedResponse{header: p.header, status: p.status}
	for _, one := range p.parts() {
		if wanted[one.name] {
			cut.body.Write(one.text)
		}
	}
	return cut
}

// split returns the parts of a response in one of the formats.
func (p *cachedResponse) split() []part {
	switch kind := p.header.Get("Content-Type"); {
	case p.status/100 != 2:
		return []part{{text: p.body.Bytes()}}
	case strings.HasPrefix(kind, "application/vnd.google.protobuf"):
		return splitMessages(p.body.Bytes())
	default:
		return splitLines(p.body.Bytes(), strings.HasPrefix(kind, "application/openmetrics-text"))
	}
}

// splitMessages splits messages, each of which is preceded by its length. The
// first field of a message is the family's name.
func splitMessages(text []byte) (parts []part) {
	for len(text) > 0 {
		long, n := binary.Uvarint(text)
		one := text[:n+int(long)]
		length, m := binary.Uvarint(one[n+1:])
		parts = append(parts, part{string(one[n+1+m:][:length]), one})
		text = text[len(one):]
	}
	return parts
}

// splitLines splits text. Comments begin the section of a family. OpenMetrics
// leaves the suffix of a counter's name out there.
func splitLines(text []byte, open bool) (parts []part) {
	begun, end, family := 0, 0, ""
	for line := range bytes.Lines(text) {
		at := end
		end += len(line)
		if line[0] == '#' {
			comment := append(strings.Fields(string(line)), "", "") // at least # and a word
			if name := comment[2]; name != family || len(parts) == 0 {
				parts, begun, family = append(parts, part{name: name}), at, name
			}
			if open && comment[1] == "TYPE" && comment[3] == "counter" {
				parts[len(parts)-1].name += "_total"
			}
		}
		if len(parts) > 0 {
			parts[len(parts)-1].text = text[begun:end]
		}
	}
	return parts
}
