package ras

import (
	"regexp"
	"strconv"
	"strings"
)

// Lines of an answer as text. Those of 2.28.9 are recorded; those of 2.24 to
// 2.27 follow NCCL's source and are not verified.
var (
	versionLine = regexp.MustCompile(`^NCCL version (\S+)`)
	headLine    = regexp.MustCompile(`^#\d+-\d+ \(([0-9a-f]+)\) (INCOMPLETE|ERROR|MISMATCH)`)
	countsLine  = regexp.MustCompile(`^  Communicator ranks have different (\w+) operation counts`)
	groupLine   = regexp.MustCompile(`^  \d+ ranks have (?:not )?launched (?:up to operation (\d+)|any operations)`)
	missingLine = regexp.MustCompile(`^  The missing ranks?: ([\d,]+)$`) // until 2.25
	rankLine    = regexp.MustCompile(`^  Rank (\d+)( has (?:not )?launched (?:up to operation (\d+)|any operations))? ` +
		`-- (?:GPU .* managed by process (\d+) on node (\S+))?`)
)

// total names the only count of 2.24, which tells no collectives apart.
const total = "collective"

// parseText reads an answer as text. It leaves out what it does not know, and
// keeps no part of the text.
func parseText(text string) Status {
	var t textParser
	for line := range strings.Lines(text) {
		if t.told >= maxRanks {
			break
		}
		t.line(strings.TrimRight(line, "\r\n"))
	}
	t.group()
	return t.status
}

// A textParser knows the headings under which a line stands.
type textParser struct {
	status    Status
	places    map[string]int // of communicators, by ID; nil: none yet
	ranks     map[place]int  // of ranks in their communicator
	at        int            // place of the communicator that the lines are about
	operation string         // empty: the lines are not about counts
	count     uint64         // of the group whose ranks may follow
	told      int            // lines about ranks, groups and communicators
	unnamed   bool           // no rank of that group has followed so far
	missing   bool           // the lines name missing ranks
}

// A place is a rank's.
type place struct{ communicator, rank int }

func (t *textParser) line(line string) {
	if m := versionLine.FindStringSubmatch(line); m != nil {
		t.status.Version = strings.Clone(m[1])
	}
	if !strings.HasPrefix(line, "  ") && !strings.HasPrefix(line, "#") {
		return
	}
	t.told++
	rank := rankLine.FindStringSubmatch(line)
	if rank == nil || rank[2] != "" {
		t.group()
	}
	if m := headLine.FindStringSubmatch(line); m != nil {
		t.begin(strings.Clone(m[1]))
		t.operation, t.missing = "", m[2] == "INCOMPLETE"
		t.here().Closing = t.here().Closing || m[2] == "ERROR"
		return
	}
	if t.places == nil {
		return
	}
	if strings.HasPrefix(line, "  Communicator ranks have different status") {
		t.here().Closing = true
	}
	if m := countsLine.FindStringSubmatch(line); m != nil {
		t.operation = strings.Clone(m[1])
	}
	if m := groupLine.FindStringSubmatch(line); m != nil && t.operation != "" {
		t.count, t.unnamed = toNumber(m[1]), true
	}
	if rank != nil && (t.missing || t.operation != "") {
		t.rank(rank)
	}
	if m := missingLine.FindStringSubmatch(line); m != nil && t.missing {
		for number := range strings.SplitSeq(m[1], ",") {
			if t.told++; t.told < maxRanks {
				t.rank([]string{"", number, "", "", "", ""})
			}
		}
	}
}

// group ends a group of ranks with equal counts. Text does not name the ranks of
// a large one.
func (t *textParser) group() {
	if t.unnamed {
		t.here().Ranks = append(t.here().Ranks, Rank{Rank: -1, Counts: map[string]uint64{t.operation: t.count}})
	}
	t.unnamed = false
}

// begin goes to a communicator, of which lines may have told before.
func (t *textParser) begin(id string) {
	if t.places == nil {
		t.places, t.ranks = map[string]int{}, map[place]int{}
	}
	at, known := t.places[id]
	if !known {
		at = len(t.status.Communicators)
		t.places[id] = at
		t.status.Communicators = append(t.status.Communicators, Communicator{ID: id})
	}
	t.at = at
}

// here returns the communicator that the lines are about.
func (t *textParser) here() *Communicator { return &t.status.Communicators[t.at] }

// rank notes a line about a rank.
func (t *textParser) rank(m []string) {
	c, number := t.here(), int(toNumber(m[1]))
	i, known := t.ranks[place{t.at, number}]
	if !known {
		i = len(c.Ranks)
		t.ranks[place{t.at, number}] = i
		c.Ranks = append(c.Ranks, Rank{Rank: number})
	}
	r := &c.Ranks[i]
	r.PID, r.Host = int(toNumber(m[4])), strings.Clone(m[5])
	if t.operation == "" {
		r.Missing = true
		return
	}
	if r.Counts == nil {
		r.Counts = map[string]uint64{}
	}
	r.Counts[t.operation], t.unnamed = t.count, false
	if m[2] != "" {
		r.Counts[t.operation] = toNumber(m[3])
	}
}

// toNumber returns 0 for what is none, or too large.
func toNumber(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 62)
	if err != nil {
		return 0
	}
	return n
}
