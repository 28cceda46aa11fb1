package ras

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// A job answers every 5 s.
type job struct {
	watch Watch
	at    time.Duration
}

func (j *job) answer(c ...Communicator) {
	j.at += 5 * time.Second
	j.watch.See(j.at, Status{Communicators: c})
}

// hangs returns the present hangs as text: culprits and how many wait.
func (j *job) hangs() string {
	var all []string
	for _, h := range j.watch.Hangs(j.at, Patience) {
		var culprits []string
		for _, r := range h.Culprits {
			culprits = append(culprits, fmt.Sprint(r.PID))
		}
		all = append(all, fmt.Sprintf("%s<%d", strings.Join(culprits, ","), len(h.Waiting)))
	}
	return strings.Join(all, " ")
}

// comm returns a communicator of processes by their counts of AllReduce; below 0: the process does not answer.
func comm(id string, counts map[int]int) Communicator {
	c := Communicator{ID: id}
	for pid := range 100 {
		n, there := counts[pid]
		switch {
		case !there:
		case n < 0:
			c.Ranks = append(c.Ranks, Rank{Rank: pid, Host: "a", PID: pid, Missing: true})
		default:
			c.Ranks = append(c.Ranks, Rank{Rank: pid, Host: "a", PID: pid,
				Counts: map[string]uint64{"AllReduce": uint64(n), "Broadcast": 3}})
		}
	}
	return c
}

// counted returns a communicator of two processes with counts of a collective.
func counted(name string, first, second uint64) Communicator {
	return Communicator{ID: "w", Ranks: []Rank{{Rank: 0, PID: 1, Counts: map[string]uint64{name: first}},
		{Rank: 1, PID: 2, Counts: map[string]uint64{name: second}}}}
}

func TestHangs(t *testing.T) {
	type answers = []Communicator
	world := func(counts map[int]int) Communicator { return comm("w", counts) }
	closing := counted("AllReduce", 2, 1)
	closing.Closing = true
	crossed := counted("AllReduce", 2, 1)
	crossed.Ranks[0].Counts["AllGather"], crossed.Ranks[1].Counts["AllGather"] = 4, 5
	for _, c := range []struct {
		name  string
		first answers // once
		then  answers // from then on
		want  string
	}{
		{"one is behind", nil, answers{world(map[int]int{1: 9, 2: 8, 3: 9})}, "2<2"},
		{"two are behind", nil, answers{world(map[int]int{1: 9, 2: 8, 3: 8})}, "2,3<1"},
		{"all are equal", nil, answers{world(map[int]int{1: 9, 2: 9})}, ""},
		{"it ended before the others went on", answers{world(map[int]int{1: 8, 2: 8})},
			answers{world(map[int]int{1: 9, 2: -1})}, "2<1"},
		{"it ended, and so did the work", answers{world(map[int]int{1: 8, 2: 8})},
			answers{world(map[int]int{1: 8, 2: -1})}, ""},
		{"it ended before anybody looked", nil, answers{world(map[int]int{1: 9, 2: -1})}, ""},
		{"one ended and one is late", answers{world(map[int]int{1: 8, 2: 8, 3: 8})},
			answers{world(map[int]int{1: 9, 2: 8, 3: -1})}, "3<1"},
		{"one is late, and one ended before anybody looked", nil, answers{world(map[int]int{1: 9, 2: 8, 3: -1})}, ""},
		{"a chain of communicators", nil, answers{comm("tensor", map[int]int{1: 5, 2: 4}),
			comm("data", map[int]int{2: 7, 3: 6})}, "3<1"},
		{"a circle of communicators", nil, answers{comm("one", map[int]int{1: 5, 2: 4}),
			comm("other", map[int]int{1: 6, 2: 7})}, ""},
		{"two operations crossed", nil, answers{crossed}, ""},
		{"the root of a broadcast goes on", nil, answers{counted("Broadcast", 2, 1)}, ""},
		{"all but the root of a reduction go on", nil, answers{counted("Reduce", 2, 1)}, ""},
		{"send and receive", nil, answers{counted("SendRecv", 2, 1)}, ""},
		{"only a sum is known", nil, answers{counted(total, 2, 1)}, "2<1"},
		{"it is taken down", nil, answers{closing}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := &job{}
			j.answer(c.first...)
			for range 2 {
				j.answer(c.then...)
				fixture.Equal(t, j.hangs(), "", "after %v", j.at)
			}
			j.answer(c.then...)
			fixture.Equal(t, j.hangs(), c.want, "hangs")
		})
	}
}

// TestProgressIsNotAHang: a rank is always ahead, but all get on.
func TestProgressIsNotAHang(t *testing.T) {
	j := &job{}
	for i := range 20 {
		j.answer(comm("w", map[int]int{1: 100*i + 1, 2: 100 * i}))
		fixture.Need(t, j.hangs(), "", "after %v", j.at)
	}
}

// TestStill: answers tell for how long nothing has changed; the time since the last of them tells nothing.
func TestStill(t *testing.T) {
	j := &job{}
	for i, want := range []string{"0 0", "1 0", "1 1"} {
		j.answer(comm("w", map[int]int{1: 2, 2: 1}))
		later := j.at + forget
		fixture.Equal(t, fmt.Sprint(len(j.watch.Hangs(later, 1)), len(j.watch.Hangs(later, Patience))), want,
			"after %d answers", i+1)
	}
	j.answer(comm("w", map[int]int{1: 3, 2: 2}))
	fixture.Equal(t, len(j.watch.Hangs(j.at, 1)), 0, "hangs of one that goes on")
}

// TestOtherWork: the rank that is behind gets on in another communicator.
func TestOtherWork(t *testing.T) {
	j := &job{}
	for i := range 20 {
		j.answer(comm("w", map[int]int{1: 2, 2: 1, 3: 2}), comm("tensor", map[int]int{2: i, 4: i}))
		fixture.Need(t, j.hangs(), "", "after %v", j.at)
	}
}

// TestUnnamed: text does not name the ranks of a large group. If they are behind, nobody is named in their place.
func TestUnnamed(t *testing.T) {
	unnamed := Rank{Rank: -1, Counts: map[string]uint64{"AllReduce": 2}}
	for _, c := range []struct {
		ahead, behind int
		want          string
	}{{3, 2, ""}, {2, 1, "2<2"}} {
		j, group := &job{}, comm("w", map[int]int{1: c.ahead, 2: c.behind})
		group.Ranks = append(group.Ranks, unnamed)
		for range 3 {
			j.answer(group)
		}
		fixture.Equal(t, j.hangs(), c.want, "%d ahead of %d", c.ahead, c.behind)
	}
}

// TestOrder: the hang in which most wait comes first, and then the oldest.
func TestOrder(t *testing.T) {
	j := &job{}
	old, small := comm("old", map[int]int{21: 2, 22: 1}), comm("small", map[int]int{11: 2, 12: 1})
	j.answer(old)
	for range 3 {
		j.answer(old, small, comm("large", map[int]int{31: 2, 32: 1, 33: 2}), comm("twin", map[int]int{7: 2, 8: 1}))
	}
	fixture.Equal(t, j.hangs(), "32<2 22<1 8<1 12<1", "hangs")
}

// TestJobsTakeTurns: answers come from two jobs by turns, one of which then ends.
func TestJobsTakeTurns(t *testing.T) {
	j := &job{}
	for i := range 6 {
		j.answer(comm("w", map[int]int{1: 2, 2: 1}))
		j.answer(comm("v", map[int]int{3: i, 4: i}))
	}
	fixture.Equal(t, j.hangs(), "2<1", "the hangs")
	j.at += forget - 10*time.Second
	j.answer(comm("v", map[int]int{3: 7, 4: 7}))
	fixture.Equal(t, j.hangs(), "2<1", "after half an hour without it")
	j.answer()
	fixture.Equal(t, j.hangs(), "", "it is forgotten")
}

func TestRecordedHangs(t *testing.T) {
	for file, want := range map[string]string{"mismatch.json": "656<1", "mismatch.txt": "656<1", "even.json": "",
		"missing.json": "", "missing.txt": "", "garbage-rank-2.27.3.txt": "6010<1",
		"mismatch-32-ranks-2.26.2.txt": "" /* text does not name the 30 that are behind */} {
		j := &job{}
		for range 3 {
			j.answer(mustParse(t, recorded(t, file)).Communicators...)
		}
		fixture.Equal(t, j.hangs(), want, "%s", file)
	}
	// The rank that is missing was seen before, a step behind.
	j, missing := &job{}, mustParse(t, recorded(t, "missing.json")).Communicators[0]
	before := missing
	before.Ranks = []Rank{missing.Ranks[0], missing.Ranks[1]}
	before.Ranks[1].Missing, before.Ranks[1].Counts = false, map[string]uint64{"AllReduce": 1200}
	j.answer(before)
	for range 3 {
		j.answer(missing)
	}
	fixture.Equal(t, j.hangs(), "885<1", "hangs")
}

// TestSilent: of a rank that never answered only its process can be named, if the answer has it.
func TestSilent(t *testing.T) {
	for text, want := range map[string]int{recorded(t, "missing.txt"): 885, recorded(t, "missing.json"): 885,
		"NCCL version 2.25.1\n#0-0 (aa) INCOMPLETE\n  The missing ranks: 3,5\n": 0} {
		j, pid := &job{}, 0
		for range 3 {
			j.answer(mustParse(t, text).Communicators...)
		}
		for _, h := range j.watch.Silent(Patience) {
			pid += h.Culprits[0].PID
		}
		fixture.Equal(t, pid, want, "%.20q: the process", text)
	}
}
