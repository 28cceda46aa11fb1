package health

import (
	"testing"
	"time"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// States of a level: its fault is present, is clear, has just been left, or
// never was.
const (
	isThere = iota
	isClear
	isJustLeft
	neverWas
)

// levelThat returns a level in such a state.
func levelThat(stands int) level {
	l := level{active: stands <= isClear, value: 3, worst: 7, when: birth}
	switch stands {
	case isClear:
		l.clear = 1
	case neverWas:
		l.when = time.Time{}
	}
	return l
}

// TestLevelOfASentence checks which of a check's levels its sentence describes.
func TestLevelOfASentence(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		severities []incident.Severity
		stand      []int
		want       int
	}{
		{[]incident.Severity{incident.Warning, incident.Critical}, []int{neverWas, neverWas}, 0},
		{[]incident.Severity{incident.Warning, incident.Critical}, []int{isThere, isThere}, 1},
		{[]incident.Severity{incident.Warning, incident.Critical}, []int{isThere, isClear}, 1},
		{[]incident.Severity{incident.Critical, incident.Critical}, []int{isThere, isClear}, 0},
		{[]incident.Severity{incident.Critical, incident.Critical}, []int{isClear, isThere}, 1},
		{[]incident.Severity{incident.Critical, incident.Critical}, []int{isThere, isThere}, 0},
		{[]incident.Severity{incident.Emergency, incident.Info}, []int{isJustLeft, isClear}, 1},
		{[]incident.Severity{incident.Info, incident.Emergency}, []int{isClear, isJustLeft}, 0},
		{[]incident.Severity{incident.Warning, incident.Critical}, []int{isJustLeft, isJustLeft}, 1},
		{[]incident.Severity{incident.Critical, incident.Warning}, []int{isJustLeft, isJustLeft}, 0},
		{[]incident.Severity{incident.Critical, incident.Info}, []int{neverWas, isJustLeft}, 1},
		{[]incident.Severity{incident.Info, incident.Info, incident.Warning}, []int{isClear, isThere, isClear}, 2},
	} {
		check, st := &Check{}, &status{}
		for i, s := range c.severities {
			check.Levels = append(check.Levels, Level{Severity: s})
			st.levels = append(st.levels, levelThat(c.stand[i]))
		}
		fixture.Equal(t, st.told(check), c.want, "%v that stand as %v: level … is told of", c.severities, c.stand)
	}
}

// TestValueOfASentence checks when a level's sentence has the current value,
// and when the worst one.
func TestValueOfASentence(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stands int
		state  incident.State
		value  float64
		past   bool
	}{
		{isThere, incident.Degraded, 3, false}, {isThere, incident.Failed, 3, false},
		{isThere, incident.Recovering, 7, true}, {isThere, incident.Unknown, 7, true},
		{isClear, incident.Degraded, 7, true}, {isJustLeft, incident.OK, 7, true}, {neverWas, incident.OK, 3, true},
	} {
		st := &status{state: c.state, levels: []level{{}, levelThat(c.stands)}}
		if v, past := st.says(1); v != c.value || past != c.past {
			t.Errorf("a level that stands as %d, %v: %g, past %v; want %g, %v", c.stands, c.state, v, past, c.value,
				c.past)
		}
	}
}
