package collectors_test

import (
	"encoding/xml"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// An smiRow maps one of nvidia-smi's elements to one of our series.
type smiRow struct {
	path      string
	series    seriesRef         // without a metric: the note gives the reason
	scale     float64           // one of nvidia-smi's units in ours
	words     map[string]string // instead of scale: a word's value in ours; "absent": no series; "*": any other word
	tolerance float64           // in our unit
	note      string
}

// smiTable reads testdata/nvidia-smi.tsv.
func smiTable(t testing.TB) []smiRow {
	t.Helper()
	var rows []smiRow
	for _, c := range readTable(t, "nvidia-smi.tsv", "path", "series", "scale", "tolerance", "note") {
		r := smiRow{path: c[0], note: c[4]}
		if c[1] != "" {
			var err error
			if r.series, err = parseRef(c[1]); err != nil {
				t.Errorf("nvidia-smi.tsv: %s: %v", r.path, err)
				continue
			}
			if r.scale, err = strconv.ParseFloat(c[2], 64); err != nil && c[2] != "" {
				r.words = map[string]string{}
				for pair := range strings.SplitSeq(c[2], ",") {
					word, ours, ok := strings.Cut(pair, "=")
					fixture.Equal(t, ok, true, "nvidia-smi.tsv: %s: %q is neither a scale nor word=value", r.path, pair)
					r.words[word] = ours
				}
			} else if (c[2] == "") != (r.series.label != "") {
				t.Errorf("nvidia-smi.tsv: %s: a value has a scale, a label has none or words: %q", r.path, c[2])
			}
			if r.tolerance, err = strconv.ParseFloat(c[3], 64); err != nil || r.tolerance < 0 {
				t.Errorf("nvidia-smi.tsv: %s: the tolerance is %q", r.path, c[3])
			}
		}
		rows = append(rows, r)
	}
	return rows
}

// An smiGPU is nvidia-smi's output for one GPU: the texts of each leaf.
type smiGPU struct {
	uuid   string
	values map[string][]string
}

type smiNode struct {
	XMLName xml.Name
	Text    string    `xml:",chardata"`
	Nodes   []smiNode `xml:",any"`
}

func (n smiNode) leaves(path string, into map[string][]string) {
	for _, c := range n.Nodes {
		at := strings.TrimPrefix(path+"/"+c.XMLName.Local, "/")
		if len(c.Nodes) == 0 {
			into[at] = append(into[at], strings.TrimSpace(c.Text))
		}
		c.leaves(at, into)
	}
}

// parseSMI parses the output of "nvidia-smi -q -x". Elements above the GPUs are part of each GPU.
func parseSMI(text []byte) ([]smiGPU, error) {
	var root smiNode
	if err := xml.Unmarshal(text, &root); err != nil {
		return nil, fmt.Errorf("parse nvidia-smi's XML: %w", err)
	}
	isGPU := func(n smiNode) bool { return n.XMLName.Local == "gpu" }
	above := smiNode{Nodes: slices.DeleteFunc(slices.Clone(root.Nodes), isGPU)}
	var gpus []smiGPU
	for _, n := range root.Nodes {
		if isGPU(n) {
			g := smiGPU{values: map[string][]string{}}
			above.leaves("", g.values)
			n.leaves("", g.values)
			g.uuid = strings.Join(g.values["uuid"], "")
			gpus = append(gpus, g)
		}
	}
	if len(gpus) == 0 {
		return nil, fmt.Errorf("nvidia-smi's XML has no GPU")
	}
	return gpus, nil
}

func recordedSMI(t testing.TB) []byte {
	t.Helper()
	return fixture.Value(os.ReadFile("testdata/nvidia-smi-h100.xml"))(t)
}
