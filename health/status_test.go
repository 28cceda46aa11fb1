package health

import (
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// TestHoldDownOfAFault holds that a fault flaps if it returns within an hour of its end, and not later.
func TestHoldDownOfAFault(t *testing.T) {
	for _, c := range []struct {
		hold, since, want time.Duration
	}{
		{0, time.Second, holdFirst}, {holdFirst, flapping - time.Second, 2 * holdFirst},
		{holdFirst, flapping, holdFirst},
		{holdMost / 2, 0, holdMost}, {40 * time.Minute, 0, holdMost}, {holdMost, 0, holdMost},
		{holdMost, flapping, holdFirst},
	} {
		st := status{hold: c.hold, left: birth}
		st.enter(birth.Add(c.since))
		fixture.Equal(t, st.hold, c.want, "held for %v, and %v later: for", c.hold, c.since)
	}
}

// TestEntitiesAreForgotten checks when an entity without data is forgotten.
func TestEntitiesAreForgotten(t *testing.T) {
	for name, c := range map[string]struct {
		st    status
		fails bool
		quiet time.Duration
		want  bool
	}{
		"an hour":                          {status{}, false, forgotten, false},
		"more than an hour":                {status{}, false, forgotten + 1, true},
		"and it fails":                     {status{}, true, forgotten + 1, true},
		"and it is latched":                {status{latched: true}, true, 10 * forgotten, false},
		"a workload, for a moment":         {status{passing: true}, false, silent*step - 1, false},
		"a workload":                       {status{passing: true}, false, silent * step, true},
		"a workload that fails":            {status{passing: true}, true, silent * step, false},
		"a workload that fails, for hours": {status{passing: true}, true, forgotten + 1, true},
		"a workload that is latched":       {status{passing: true, latched: true}, false, silent * step, false},
	} {
		c.st.read, c.st.levels = birth, []level{{active: c.fails}, {}}
		fixture.Equal(t, c.st.over(hotCheck, birth.Add(c.quiet)), c.want, "%s: it is over", name)
	}
}

// TestRenumberedGPULeavesNothingUnknown: what is unknown of a GPU ends once it answers at another index.
func TestRenumberedGPULeavesNothingUnknown(t *testing.T) {
	w := newWorld(t, hotCheck)
	w.steps(1, on("0", collectors.Up, 1), hotAt(50))
	for up, want := range []incident.State{incident.Unknown, incident.OK} {
		w.steps(silent+1, collectors.Sample{Metric: collectors.Up, Labels: []string{"1", "GPU-0"}, Value: float64(up)})
		fixture.Equal(t, w.state("hot"), want, "up %d: the check is", up)
	}
}

// TestLeavingALevel enters a level, and checks when it is left: by the time
// since it was bad, by its clear samples, and by the existence of readings.
func TestLeavingALevel(t *testing.T) {
	l := Level{Severity: incident.Warning, When: Value(device.TemperatureMargin).AtMost(0), For: of(2, 3)}
	c := &Check{ID: "one", Levels: []Level{l}}
	for name, x := range map[string]struct {
		bad, read time.Duration // ago
		clear     int
		latched   bool
		want      incident.State
	}{
		"it is clear for long enough":        {holdFirst, 0, 3, false, incident.OK},
		"it was bad just now":                {holdFirst - 1, 0, 3, false, incident.Recovering},
		"a sample too few":                   {holdFirst, 0, 2, false, incident.Recovering},
		"it is bad":                          {0, 0, 0, false, incident.Degraded},
		"it is latched":                      {holdFirst, 0, 3, true, incident.Degraded},
		"nothing is read":                    {holdFirst, holdFirst, 0, false, incident.OK},
		"nothing is read, not for long":      {holdFirst, holdFirst - 1, 0, false, incident.Unknown},
		"nothing is read, for three samples": {silent * step, silent * step, 0, false, incident.Unknown},
		"nothing is read, for two":           {silent*step - 1, silent*step - 1, 0, false, incident.Degraded},
	} {
		now := birth.Add(time.Hour)
		st := status{state: incident.Degraded, hold: holdFirst, latched: x.latched, read: now.Add(-x.read),
			levels: []level{{active: true, bad: now.Add(-x.bad), read: now.Add(-x.read), clear: x.clear}}}
		st.settle(c, now)
		got := st.state
		if got == incident.Unknown && !st.levels[0].active { // its current state is unknown
			got = incident.OK
		}
		fixture.If(t, got != x.want || st.left.Equal(now) != (x.want == incident.OK),
			"%s: %v, left at %v; want %v", name, st.state, st.left, x.want)
	}
}

// TestHurriedLevels checks which levels a look of a few seconds can judge, and by how many samples.
func TestHurriedLevels(t *testing.T) {
	margin := func() *Signal { return Value(device.TemperatureMargin) }
	for name, c := range map[string]struct {
		level Level
		can   bool
		want  Persistence
	}{
		"at once":            {Level{When: margin().AtMost(0)}, true, Persistence{}},
		"one sample":         {Level{When: margin().AtMost(0), For: of(1, 1)}, true, of(1, 1)},
		"two of three":       {Level{When: margin().AtMost(0), For: of(2, 3)}, true, Persistence{2, 3, glance}},
		"six of eight":       {Level{When: margin().AtMost(0), For: of(6, 8)}, true, Persistence{3, 3, glance}},
		"nearly two minutes": {Level{When: margin().AtMost(0), For: of(11, 11)}, true, Persistence{3, 3, glance}},
		"two minutes":        {Level{When: margin().AtMost(0), For: of(12, 12)}, false, of(12, 12)},
		"a comparison":       {Level{When: margin().Optional().AtMost(0), For: of(2, 2)}, false, Persistence{2, 2, glance}},
		"an increase": {Level{When: Increase(device.Energy, time.Minute).Above(0), For: of(2, 2)}, false,
			Persistence{2, 2, glance}},
		"incidents of a while": {Level{When: lostLately().Above(0)}, true, Persistence{}},
	} {
		if can := c.level.hurry(); can != c.can || c.level.For != c.want {
			t.Errorf("%s: it can be judged: %v, by %+v", name, can, c.level.For)
		}
	}
}

// lostLately is a check's signal that counts incidents within minutes.
func lostLately() *Signal {
	for _, c := range signals() {
		if c.Signal.counts != nil && c.Signal.window > 0 && !c.Signal.optional {
			return c.Signal
		}
	}
	return nil
}
