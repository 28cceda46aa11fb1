package schedule

import (
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// ready returns a tenant of a GPU that is ready to run, and paused.
func ready(d *desk, name string, s Share) *tenant {
	d.join(s, name)
	x := d.find(name)
	x.wants, x.ever = true, true
	return x
}

// A ready tenant has a session, wants to run, and may.
func TestReady(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*tenant)
		want   bool
	}{
		"wants":         {func(*tenant) {}, true},
		"with sessions": {func(x *tenant) { x.sessions = 3 }, true},
		"gone":          {func(x *tenant) { x.sessions = 0 }, false},
		"rests":         {func(x *tenant) { x.wants = false }, false},
		"dry":           {func(x *tenant) { x.dry = true }, false},
		"held":          {func(x *tenant) { x.share.Held = true }, false},
	} {
		x := ready(newDesk(t, Config{}, 1), "x", Share{})
		c.change(x)
		fixture.If(t, x.ready() != c.want, "%s: ready %v", what, !c.want)
	}
}

// Half a turn is longer if more than two tenants take turns, and twice as long beside a gang.
func TestHalf(t *testing.T) {
	d := newDesk(t, Config{}, 2)
	for i, want := range []time.Duration{5 * ms, 5 * ms, 6250 * us, 7500 * us, 8750 * us} {
		if ready(d, string(rune('a'+i)), Share{}); d.half() != want {
			t.Errorf("of %d: %v, not %v", i+1, d.half(), want)
		}
	}
	d.find("e").dry, d.find("d").share.Held, d.find("c").wants = true, true, false
	fixture.Equal(t, d.half(), 5*ms, "with two ready tenants")
	d.Scheduler.gpus[1].Join(0, "a", Share{})
	d.Link(0, d.Scheduler.gpus[1], "a")
	fixture.Equal(t, d.half(), 10*ms, "beside a gang")
}

// The order is by class, then by running measurement, by recent begin, and by
// debt. A running tenant has a bonus of half a turn.
func TestRank(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	x, y := ready(d, "x", Share{}), ready(d, "y", Share{})
	x.lag, y.lag = 3*ms, 0
	d.GPU.now = time.Second
	for what, c := range map[string]struct {
		change func()
		want   rank
	}{
		"paused":        {func() {}, rank{Normal, 3 * ms}},
		"begins":        {func() { x.state.Mode, x.opened = Run, time.Second-2*ms+1 }, rank{Normal, first - 1}},
		"runs":          {func() { x.state.Mode, x.opened = Run, time.Second-2*ms }, rank{Normal, 8 * ms}},
		"nudged":        {func() { x.state.Mode, x.nudge = Run, time.Second }, rank{Normal, 3 * ms}},
		"measured":      {func() { d.measured = x }, rank{Normal, first}},
		"idle":          {func() { x.share.Class = Idle }, rank{Idle, 3 * ms}},
		"hurried":       {func() { x.share.Wait = ms; x.lag = -10*ms + 1 }, rank{Realtime, -10*ms + 1}},
		"ahead":         {func() { x.share.Wait = ms; x.lag = -10 * ms }, rank{Normal, -10 * ms}},
		"idle, hurried": {func() { x.share.Wait, x.share.Class = ms, Idle }, rank{Idle, 3 * ms}},
		"realtime":      {func() { x.share.Class = Realtime; x.lag = -time.Minute }, rank{Realtime, -time.Minute}},
	} {
		was, host := *x, *d.GPU
		if c.change(); d.rankOf(x.unit) != c.want {
			t.Errorf("%s: %+v, not %+v", what, d.rankOf(x.unit), c.want)
		}
		*x, *d.GPU = was, host
	}
	fixture.If(t, (rank{Idle, 5}).compare(rank{Normal, 1}) <= 0 || (rank{Normal, 5}).compare(rank{Normal, 1}) >= 0 ||
		(rank{1, 1}).compare(rank{1, 1}) != 0,
		"the order is wrong")
}

// A gang is as urgent as its most urgent rank, and its debt is the smallest of its ranks.
func TestRankOfGang(t *testing.T) {
	d := newDesk(t, Config{}, 3)
	x := ready(d, "x", Share{})
	for i, g := range d.Scheduler.gpus[1:] {
		g.Join(0, "x", Share{Class: Class(i - 1)})
		d.Link(0, g, "x")
		g.find("x").wants, g.find("x").lag = i == 0, -time.Duration(i+1)*ms
	}
	x.lag = 4 * ms
	if got := d.rankOf(x.unit); got != (rank{Normal, -ms}) || x.unit.lag() != -ms {
		t.Errorf("%+v, %v", got, x.unit.lag())
	}
	x.wants = false // leaves the rank of the idle class
	if got := d.rankOf(x.unit); got != (rank{Idle, -ms}) || x.unit.lag() != -ms {
		t.Errorf("where the first rests: %+v, %v", got, x.unit.lag())
	}
}

// Tenants conflict if their classes differ, or if one of them is owed time and neither is light.
func TestConflict(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	a, b := ready(d, "a", Share{}), ready(d, "b", Share{})
	for what, c := range map[string]struct {
		change func()
		want   bool
	}{
		"nobody is owed": {func() {}, false},
		"a is owed":      {func() { a.owed = true }, true},
		"b is owed":      {func() { b.owed = true }, true},
		"a is light":     {func() { a.owed, a.burst = true, ms }, false},
		"b is light":     {func() { a.owed, b.burst = true, ms }, false},
		"class":          {func() { a.unit.rank.class = Realtime }, true},
		"class, light":   {func() { a.unit.rank.class, b.burst = Realtime, ms }, true},
		"same class":     {func() { a.unit.rank.class, b.unit.rank.class = Realtime, Realtime }, false},
		"turns":          {func() { d.Scheduler.config.Turns = true }, true},
	} {
		x, y, u, v, config := *a, *b, *a.unit, *b.unit, d.Scheduler.config
		c.change()
		fixture.If(t, conflict(a, b) != c.want, "%s: %v", what, !c.want)
		*a, *b, *x.unit, *y.unit, d.Scheduler.config = x, y, u, v, config
	}
}

// A unit runs unless it may not run on one of its GPUs, or conflicts with a unit that goes first there.
func TestFits(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	a, b := ready(d, "a", Share{}), ready(d, "b", Share{})
	a.owed = true
	for what, c := range map[string]struct {
		change func()
		want   bool
	}{
		"a is not let run": {func() {}, true},
		"a goes first":     {func() { a.unit.granted = true }, false},
		"a is blocked":     {func() { a.unit.blocked = true }, false},
		"a is not ready":   {func() { a.unit.granted, a.dry = true, true }, true},
		"a is not owed":    {func() { a.unit.granted, a.owed = true, false }, true},
		"b is held":        {func() { b.share.Held = true }, false},
		"b is dry":         {func() { b.dry = true }, false},
	} {
		x, y, u, v := *a, *b, *a.unit, *b.unit
		c.change()
		fixture.If(t, b.unit.fits() != c.want, "%s: %v", what, !c.want)
		*a, *b, *x.unit, *y.unit = x, y, u, v
	}
}

// A tenant without a wish may begin at once, unless another is to run alone.
func TestMayBegin(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	a, b := ready(d, "a", Share{}), ready(d, "b", Share{})
	a.unit.granted, b.wants = true, false
	for what, c := range map[string]struct {
		change func()
		want   bool
	}{
		"nobody is owed":       {func() {}, true},
		"a is owed":            {func() { a.owed = true }, false},
		"a is owed and paused": {func() { a.owed, a.unit.granted = true, false }, true},
		"a rests":              {func() { a.owed, a.wants = true, false }, true},
		"a is light":           {func() { a.owed, a.burst = true, ms }, true},
		"a is realtime":        {func() { a.unit.rank.class = Realtime }, false},
		"b is light":           {func() { a.owed, b.burst = true, ms }, true},
		"b is hurried":         {func() { a.owed, b.share.Wait = true, ms }, true},
		"b is idle":            {func() { b.share.Class = Idle }, false},
		"b is held":            {func() { b.share.Held = true }, false},
		"b is dry":             {func() { b.dry = true }, false},
		"b wants":              {func() { b.wants = true }, false},
		"turns":                {func() { d.Scheduler.config.Turns = true }, false},
	} {
		x, y, u, v, config := *a, *b, *a.unit, *b.unit, d.Scheduler.config
		c.change()
		fixture.If(t, d.mayBegin(b) != c.want, "%s: %v", what, !c.want)
		*a, *b, *x.unit, *y.unit, d.Scheduler.config = x, y, u, v, config
	}
}

// Tenants wait for the drain of a tenant with which they conflict.
func TestClear(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	a, b := ready(d, "a", Share{}), ready(d, "b", Share{})
	for what, c := range map[string]struct {
		change func()
		want   bool
	}{
		"nobody drains":    {func() {}, true},
		"a drains":         {func() { a.drains = true }, false},
		"b itself":         {func() { b.drains = true }, true},
		"for too long":     {func() { a.drains, a.settled = true, true }, true},
		"nudged":           {func() { a.nudge = ms }, false},
		"a is light":       {func() { a.drains, a.burst = true, ms }, true},
		"b is light":       {func() { a.drains, b.burst = true, ms }, true},
		"b is hurried":     {func() { a.drains, b.share.Wait = true, ms }, true},
		"hurried in turns": {func() { a.drains, b.share.Wait, d.Scheduler.config.Turns = true, ms, true }, false},
	} {
		x, y, config := *a, *b, d.Scheduler.config
		c.change()
		fixture.If(t, b.unit.clear() != c.want, "%s: %v", what, !c.want)
		*a, *b, d.Scheduler.config = x, y, config
	}
}

// A gang waits for drains on each of its GPUs.
func TestClearOfGang(t *testing.T) {
	for _, hurried := range []bool{true, false} {
		d, other := gang(t)
		d.Scheduler.config.Turns = false
		other.Join(0, "b", Share{})
		a, b := d.find("a"), other.find("b")
		b.wants, b.drains = true, true
		a.wants, other.find("a").wants = true, true
		if hurried { // only on the first of its GPUs
			a.share.Wait = ms
		} else {
			other.find("a").share.Wait = ms
		}
		fixture.Equal(t, a.unit.clear(), !hurried, "clear; hurried on the first GPU: %v", hurried)
	}
}

// A paused tenant is told only that, and that is news.
func TestPausedIsToldNothingElse(t *testing.T) {
	d := two(t, Share{}, Share{})
	d.join(Share{Class: Realtime, Limit: 0.5}, "c")
	d.pass(10 * ms)
	if s := d.State("a"); !s.Beside || !s.Urgent {
		t.Fatalf("%+v", s)
	}
	d.find("a").state.Haste, d.find("a").state.End = true, d.at+ms
	d.Changed()
	d.want("c")
	d.decide().shows("ppr")
	for _, name := range []string{"a", "b"} {
		s := d.State(name)
		fixture.If(t, s != (State{Mode: Pause, Turn: s.Turn}), "%s: %+v", name, s)
	}
	d.Changed()
	a := d.find("a")
	d.open(a, Run)
	fixture.If(t, !d.Changed(), "no client was told that a may launch")
	d.GPU.pause(a)
	fixture.If(t, !d.Changed(), "no client was told that a may not launch")
}

// An absent tenant that is still remembered blocks nobody, and needs no decision.
func TestGoneAsksForNothing(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.join(Share{}, "a")
	d.join(Share{Limit: 0.5}, "b")
	d.find("a").lag = -20 * ms
	d.Leave(d.at, "a")
	d.want("b")
	if d.decide().shows("Pr"); d.wake == 0 || d.wake != d.State("b").End {
		t.Errorf("to be called at %v, b ends at %v", d.wake, d.State("b").End)
	}
}

// Running tenants are told whether others run, and whether others wait.
func TestFlags(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	a, b := ready(d, "a", Share{}), ready(d, "b", Share{})
	d.know()
	for what, c := range map[string]struct {
		change                func()
		beside, haste, urgent bool
	}{
		"both run":         {func() { b.state.Mode = Run }, true, false, false},
		"b waits":          {func() {}, false, true, false},
		"b waits, drains":  {func() { b.drains = true }, true, true, false},
		"b rests":          {func() { b.wants = false }, false, false, false},
		"b rests, drains":  {func() { b.wants, b.drains = false, true }, true, false, false},
		"b is held":        {func() { b.share.Held = true }, false, false, false},
		"b may hurry":      {func() { b.wants, b.share.Wait = false, ms }, false, false, true},
		"a may hurry":      {func() { b.wants, a.share.Wait = false, ms }, false, false, false},
		"both may hurry":   {func() { b.wants, a.share.Wait, b.share.Wait = false, ms, ms }, false, false, true},
		"b is gone":        {func() { b.wants, b.share.Wait, b.sessions = false, ms, 0 }, false, false, false},
		"a rests, b waits": {func() { a.wants = false }, false, true, false},
		"a rests, b runs":  {func() { a.wants, b.state.Mode = false, Run }, true, false, false},
		"b runs and rests": {func() { b.state.Mode, b.wants = Run, false }, false, false, false},
	} {
		x, y := *a, *b
		a.state.Mode, d.changed = Run, false
		c.change()
		if d.flag(); a.state.Beside != c.beside || a.state.Haste != c.haste || a.state.Urgent != c.urgent ||
			d.changed != (c.beside || c.haste || c.urgent || b.state.Beside) {
			t.Errorf("%s: %+v, changed %v", what, a.state, d.changed)
		}
		*a, *b = x, y
	}
}

// A turn ends when others will be owed half a turn more, and not before the minimum.
func TestEnd(t *testing.T) {
	t.Parallel()
	d := newDesk(t, Config{}, 1)
	a, b := ready(d, "a", Share{}), ready(d, "b", Share{})
	d.know()
	d.GPU.now = time.Second
	for what, c := range map[string]struct {
		change func()
		want   time.Duration // from now; -1: none
	}{
		"equal":         {func() { a.part, b.part = 0.5, 0.5 }, 5*ms + 1},
		"a has more":    {func() { a.part, b.part = 0.75, 0.25 }, 10*ms + 1},
		"all of it":     {func() { a.part, b.part = 1, 0 }, 100*ms + 1},
		"a is ahead":    {func() { a.part, b.part, a.lag = 0.5, 0.5, -3*ms }, 2*ms + 1},
		"it is time":    {func() { a.part, b.part, a.lag = 0.5, 0.5, -5*ms }, 1},
		"a is overdue":  {func() { a.part, b.part, a.lag = 0.5, 0.5, -8*ms }, 0},
		"the minimum":   {func() { a.lag, a.opened = -8*ms, time.Second-ms }, ms},
		"b rests":       {func() { b.wants = false }, -1},
		"b runs":        {func() { b.state.Mode = Run }, -1},
		"b is held":     {func() { b.share.Held = true }, -1},
		"b is dry":      {func() { b.dry = true }, -1},
		"b is less":     {func() { b.unit.rank.class = Idle }, -1},
		"a limit":       {func() { b.wants, a.share.Limit, a.bucket = false, 0.5, 4*ms }, 8 * ms},
		"an empty one":  {func() { b.wants, a.share.Limit, a.bucket = false, 0.5, 0 }, dregs},
		"and it rests":  {func() { b.wants, a.wants, a.share.Limit, a.bucket = false, false, 0.5, 4*ms }, -1},
		"limit or turn": {func() { a.part, b.part, a.share.Limit, a.bucket = 0.5, 0.5, 0.5, 4*ms }, 5*ms + 1},
		"turn or limit": {func() { a.part, b.part, a.share.Limit, a.bucket = 0.5, 0.5, 0.5, 2*ms }, 4 * ms},
	} {
		x, y, u, v := *a, *b, *a.unit, *b.unit
		a.state.Mode = Run
		c.change()
		if got := d.end(a); c.want < 0 && got != 0 || c.want >= 0 && got != time.Second+c.want {
			t.Errorf("%s: %v, not %v", what, got-time.Second, c.want)
		}
		*a, *b, *x.unit, *y.unit = x, y, u, v
	}
}

// The lone tenant is the one that wanted the GPU recently, or that has the only sessions.
func TestAlone(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	a, b := ready(d, "a", Share{}), ready(d, "b", Share{})
	b.wants, b.ever = false, false
	d.GPU.now = time.Minute
	for what, c := range map[string]struct {
		change func()
		want   *tenant
	}{
		"b never wanted":     {func() {}, a},
		"b wants":            {func() { b.wants = true }, nil},
		"b drains":           {func() { b.drains = true }, nil},
		"b is open":          {func() { b.state.Mode = Open }, nil},
		"b did lately":       {func() { b.ever, b.rested = true, time.Minute-silence+1 }, nil},
		"b did once":         {func() { b.ever, b.rested = true, time.Minute-silence }, a},
		"b is gone":          {func() { b.sessions, b.wants = 0, true }, a},
		"b may hurry":        {func() { b.share.Wait = ms }, nil},
		"b may hurry much":   {func() { b.share.Wait = 1 }, nil},
		"a is gone":          {func() { a.sessions, a.wants, b.wants = 0, false, true }, b},
		"a is gone, b rests": {func() { a.sessions, a.wants = 0, false }, b},
		"b is realtime":      {func() { b.share.Class = Realtime }, nil},
		"a rests":            {func() { a.wants, a.rested = false, time.Minute }, a},
		"nobody ever did":    {func() { a.wants, a.ever = false, false }, nil},
		"the only one there": {func() { a.wants, a.ever, b.sessions = false, false, 0 }, a},
		"with a limit":       {func() { a.share.Limit = 0.5 }, nil},
		"held":               {func() { a.share.Held = true }, nil},
		"turns":              {func() { d.Scheduler.config.Turns = true }, nil},
		"nobody":             {func() { a.sessions, b.sessions = 0, 0 }, nil},
	} {
		x, y, config := *a, *b, d.Scheduler.config
		if c.change(); d.alone() != c.want {
			t.Errorf("%s: %v", what, d.alone())
		}
		*a, *b, d.Scheduler.config = x, y, config
	}
}

// The cases say when the next decision is due.
func TestWake(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	a := ready(d, "a", Share{})
	d.know()
	d.GPU.now, d.triedAt = time.Second, 0
	now := func(at time.Duration) time.Duration { return time.Second + at }
	for what, c := range map[string]struct {
		change func()
		want   time.Duration // from now; 0: never
	}{
		"paused":          {func() {}, 0},
		"paused and owed": {func() { a.owed, a.lag, a.part = true, 3*ms, 0.5 }, 0},
		"runs and rests": {func() {
			a.state.Mode, a.state.End, a.wants, a.rested = Run, now(ms), false, now(-silence)
		}, 0},
		"gone":            {func() { a.sessions, a.nudge = 0, now(ms) }, 0},
		"nudged":          {func() { a.nudge = now(ms) }, ms},
		"nudged long ago": {func() { a.nudge = now(-ms) }, 10 * us},
		"drains":          {func() { a.drains, a.paused, a.held = true, now(0), now(0) }, suspect},
		"suspected":       {func() { a.drains, a.paused, a.held = true, now(-suspect), now(0) }, 40 * ms},
		"has drained":     {func() { a.drains, a.paused, a.held = true, now(-50*ms), now(0) }, 0},
		"of two sessions": {func() { a.sessions, a.drains, a.paused, a.held = 2, true, now(0), now(0) }, patience},
		"held long ago": {func() { a.sessions, a.drains, a.paused, a.held = 2, true, now(0), now(-patience) },
			suspect},
		"nudged lately": {func() {
			a.sessions, a.drains, a.paused, a.held, a.unit.again = 2, true, now(0), now(0), now(5*ms)
		}, 5 * ms},
		"dry": {func() { a.dry, a.share.Limit, a.bucket = true, 0.5, 4*ms }, 2*ms + 1},
		"dry and rests": {func() {
			a.dry, a.share.Limit, a.bucket, a.wants, a.rested = true, 0.5, 4*ms, false, now(-silence)
		}, 0},
		"light":          {func() { a.burst, a.began = ms, now(-ms) }, 2*brief - ms + 1},
		"rests":          {func() { a.wants, a.rested = false, now(-ms) }, silence - ms},
		"rests long":     {func() { a.wants, a.rested = false, now(-silence) }, 0},
		"never wanted":   {func() { a.wants, a.ever, a.rested = false, false, now(-ms) }, 0},
		"rests, open":    {func() { a.wants, a.state.Mode, a.rested = false, Open, now(-ms) }, 0},
		"has an end":     {func() { a.state.Mode, a.state.End = Run, now(100*us) }, 100 * us},
		"is overdue":     {func() { a.state.Mode, a.state.End = Run, now(0) }, 500 * us},
		"has one beside": {func() { a.state.Mode, a.state.Beside, a.state.End = Run, true, now(100*us) }, 500 * us},
		"waits for a drain": {func() {
			a.state.Mode, a.state.End, a.drains, a.paused, a.held = Run, now(0), true, now(0), now(0)
		}, suspect},
		"is owed alone": {func() { a.state.Mode, a.owed, a.lag, a.part, d.together = Run, true, 3*ms, 0.5, false }, 0},
		"runs":          {func() { a.state.Mode = Run }, 0},
		"is owed":       {func() { a.state.Mode, a.owed, a.lag, a.part = Run, true, 3*ms, 0.5 }, 6*ms + 1},
		"will be owed": {func() { a.state.Mode, a.state.Beside, a.part, a.pace.beside = Run, true, 0.7, rate{} },
			10*ms + 1},
		"is owed no more": {func() { a.state.Mode, a.owed, a.lag, a.part = Run, true, 0, 0.5 }, 0},
		"will be at once": {func() {
			a.state.Mode, a.state.Beside, a.lag, a.part, a.pace.beside = Run, true, 2*ms, 0.7, rate{}
		}, 10 * us},
		"is owed more": {func() {
			a.state.Mode, a.state.Beside, a.lag, a.part, a.pace.beside = Run, true, 2*ms+1, 0.7, rate{}
		}, 0},
		"is owed it all": {func() { a.state.Mode, a.owed, a.lag, a.part = Run, true, 3*ms, 1 }, 0},
		"has just enough": {func() {
			a.state.Mode, a.state.Beside, a.part, a.pace.beside = Run, true, 0.5, rate{}
		}, 0},
		"is never ahead":   {func() { a.state.Mode, a.unit.rank.class, a.part = Run, Realtime, 1 }, 0},
		"has more":         {func() { a.state.Mode, a.state.Beside, a.part = Run, true, 0.7 }, 0},
		"is measured":      {func() { a.state.Mode, d.measured, a.pace.tried = Run, a, now(-ms) }, measureTime - ms},
		"tries":            {func() { a.state.Mode, d.triedAt, d.trying = Run, now(-ms), true }, tryTime - ms},
		"tried":            {func() { a.state.Mode, d.triedAt = Run, now(-tryTime) }, 0},
		"tries for longer": {func() { a.state.Mode, d.triedAt, d.trying = Run, now(-tryTime), true }, 2 * tryTime},
		"must not wait": {func() { a.state.Mode, a.unit.rank.class, a.part, a.lag = Run, Realtime, 0.5, -5*ms },
			10*ms + 1},
	} {
		x, u, g := *a, *a.unit, *d.GPU
		c.change()
		if got := d.GPU.wake(); c.want == 0 && got != 0 || c.want != 0 && got != now(c.want) {
			t.Errorf("%s: %v, not %v", what, got-time.Second, c.want)
		}
		*a, *x.unit, *d.GPU = x, u, g
	}
	b := ready(d, "b", Share{})
	b.wants, b.rested, b.state.Mode = false, time.Second, Pause
	a.state.Mode, a.owed, a.lag, a.part, d.together = Run, true, 3*ms, 0.5, false
	fixture.Equal(t, d.GPU.wake(), now(6*ms+1), "is owed, and another may begin once it is not")
}

// A tenant that is owed too much counts as owed until that is made up. During a
// trial of running together no tenant does.
func TestLatch(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	a, b := ready(d, "a", Share{}), ready(d, "b", Share{})
	for what, c := range map[string]struct {
		lag    time.Duration
		was    bool
		change func()
		want   bool
	}{
		"little":      {2 * ms, false, func() {}, false},
		"too much":    {2*ms + 1, false, func() {}, true},
		"not made up": {1, true, func() {}, true},
		"made up":     {0, true, func() {}, false},
		"not ready":   {5 * ms, true, func() { a.dry = true }, false},
		"measured":    {-5 * ms, false, func() { d.measured = a }, true},
		"tries":       {5 * ms, true, func() { d.trying = true }, false},
	} {
		d.GPU.now = time.Minute
		d.know()
		x, g := *a, *d.GPU
		a.lag, a.owed = c.lag, c.was
		c.change()
		d.latch(a, d.owing())
		fixture.If(t, a.owed != c.want, "%s: owed %v", what, a.owed)
		*a, *d.GPU = x, g
	}
	_ = b
}

// Tenants that do not gain clearly by running together take turns from the end of that trial until the next one.
func TestJudge(t *testing.T) {
	for what, c := range map[string]struct {
		a, b   float64
		change func(d *desk, b *tenant)
		want   bool
	}{
		"better":            {0.6, 0.5, func(d *desk, b *tenant) {}, true},
		"as good":           {0.55, 0.51, func(d *desk, b *tenant) {}, false},
		"as good, as known": {0.55, 0.51, func(d *desk, b *tenant) { d.tried = false }, true},
		"worse, as known":   {0.52, 0.5, func(d *desk, b *tenant) { d.tried = false }, false},
		"worse":             {0.5, 0.4, func(d *desk, b *tenant) {}, false},
		"unknown":           {1, 0.5, func(d *desk, b *tenant) { b.pace.beside = rate{} }, false},
		"of one":            {0.5, 0.5, func(d *desk, b *tenant) { b.wants = false }, true},
		"one rests": {0.5, 0.4, func(d *desk, b *tenant) {
			c := ready(d, "c", Share{})
			c.pace = b.pace
			c.wants, c.ever, c.rested = false, true, d.GPU.now
		}, true},
		"one is gone": {0.5, 0.4, func(d *desk, b *tenant) {
			c := ready(d, "c", Share{})
			c.pace = b.pace
			c.wants = false
		}, false},
		"one is light": {0.5, 0.5, func(d *desk, b *tenant) { b.burst, b.began = ms, d.GPU.now }, true},
		"is tried":     {0.5, 0.5, func(d *desk, b *tenant) { d.trying = true }, true},
		"is measured":  {0.5, 0.5, func(d *desk, b *tenant) { d.measured = b }, true},
		"never tried":  {0.5, 0.5, func(d *desk, b *tenant) { d.triedAt = 0 }, true},
		"in turns":     {0.6, 0.5, func(d *desk, b *tenant) { d.together = false }, false},
		"just not better": {0, 0, func(d *desk, b *tenant) {
			b.pace.solo, b.pace.beside = rate{1, 1}, rate{1.07, 1}
		}, false},
	} {
		d := newDesk(t, Config{}, 1)
		d.GPU.now = time.Minute
		a, b := ready(d, "a", Share{}), ready(d, "b", Share{})
		d.know()
		d.tried, d.triedAt = true, time.Second
		a.pace.beside.launches, b.pace.beside.launches = c.a*2000, c.b*2000
		c.change(d, b)
		d.judge()
		fixture.If(t, d.together != c.want, "%s: %v", what, d.together)
	}
}

// Tenants that once gained by running together need a smaller gain from then on.
func TestJudgedAgain(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.GPU.now = time.Minute
	a, b := ready(d, "a", Share{}), ready(d, "b", Share{})
	d.know()
	d.tried, d.triedAt = true, time.Second
	for _, c := range []struct {
		sum  float64
		want bool
	}{{1.1, true}, {1.05, true}, {1.02, false}, {1.1, false}} {
		a.pace.beside.launches, b.pace.beside.launches = c.sum*1000, c.sum*1000
		d.judge()
		fixture.If(t, d.together != c.want, "%v: together %v", c.sum, d.together)
	}
}

// Running together is tried when a new tenant contends, and again after a while of turns.
func TestTry(t *testing.T) {
	for what, c := range map[string]struct {
		ago    time.Duration // since the last trial
		change func(d *desk, b *tenant)
		want   bool
	}{
		"turns":            {3 * time.Second, func(d *desk, b *tenant) {}, true},
		"turns, too early": {3*time.Second - 1, func(d *desk, b *tenant) {}, false},
		"together":         {time.Minute, func(d *desk, b *tenant) { d.together = true }, false},
		"somebody new":     {time.Second, func(d *desk, b *tenant) { b.pace.beside = rate{} }, true},
		"somebody new, together": {time.Second,
			func(d *desk, b *tenant) { b.pace.beside, d.together = rate{}, true }, true},
		"somebody new, too early": {time.Second - 1, func(d *desk, b *tenant) { b.pace.beside = rate{} }, false},
		"one":                     {time.Minute, func(d *desk, b *tenant) { b.wants = false }, false},
		"is measured":             {time.Minute, func(d *desk, b *tenant) { d.measured = b }, false},
		"always in turns":         {time.Minute, func(d *desk, b *tenant) { d.Scheduler.config.Turns = true }, false},
		"for the first time":      {0, func(d *desk, b *tenant) { d.triedAt = 0 }, true},
		"b is to be measured":     {0, func(d *desk, b *tenant) { d.triedAt, b.pace.solo = 0, rate{} }, false},
		"b was measured in vain": {0, func(d *desk, b *tenant) {
			d.triedAt, b.pace.solo, b.pace.tried = 0, rate{}, 1
		}, true},
		"first, as if together":   {0, func(d *desk, b *tenant) { d.triedAt, d.together = 0, true }, true},
		"first, at once":          {0, func(d *desk, b *tenant) { d.GPU.now, d.triedAt = ms, 0 }, true},
		"nothing to compare with": {time.Second, func(d *desk, b *tenant) { b.pace = pace{} }, false},
	} {
		d := newDesk(t, Config{}, 1)
		a, b := ready(d, "a", Share{}), ready(d, "b", Share{})
		d.GPU.now = time.Hour
		d.know()
		d.triedAt, d.together = d.GPU.now-c.ago, false
		c.change(d, b)
		d.try()
		if began := d.triedAt == d.GPU.now; began != c.want ||
			began && (!d.together || !d.tried || a.pace.beside.seconds > 0.04 || b.pace.beside.seconds > 0.04) {
			t.Errorf("%s: at %v, %+v", what, d.triedAt, a.pace)
		}
	}
}

func TestTries(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	fixture.If(t, d.tries(), "before it was tried")
	a := ready(d, "a", Share{})
	for _, c := range []struct {
		ago   time.Duration
		known bool
		want  bool
	}{{0, true, true}, {40*ms - 1, true, true}, {40 * ms, true, false}, {40 * ms, false, true},
		{120*ms - 1, false, true}, {120 * ms, false, false}} {
		d.know()
		if !c.known {
			a.pace.beside = rate{}
		}
		d.GPU.now, d.triedAt = time.Minute, time.Minute-c.ago
		fixture.Equal(t, d.tries(), c.want, "%+v: it tries", c)
	}
	d.triedAt, d.measured = d.GPU.now, a
	fixture.If(t, d.tries(), "while somebody is measured")
}

// A trial is longer while too few launches were seen to tell that everybody has its part.
func TestUndecidedTrial(t *testing.T) {
	for _, c := range []struct {
		launches, part float64
		trial          trial
		most           time.Duration
	}{{100, 0.5, plain, tryTime}, {20, 0.5, plain, tryMost}, {20, 0.5, none, tryTime}, {20, 0.4, plain, tryTime},
		{20, 0.49, curbed, tryMost}} {
		d, a, b := pair(t)
		d.freedom.trial = c.trial
		besides(b, 0.6)
		a.pace.solo = rate{c.launches, 1}
		a.pace.beside = rate{c.launches * c.part, 1}
		for ago, want := range map[time.Duration]bool{c.most - 1: true, c.most: false} {
			if d.GPU.now, d.triedAt = d.at, d.at-ago; d.tries() != want {
				t.Errorf("%+v after %v: %v", c, ago, !want)
			}
		}
	}
}

// A tenant that is owed time, and that conflicts with the first one, is not delayed further by later ones.
func TestBlocked(t *testing.T) {
	for owed, want := range map[time.Duration]string{3 * ms: "rpp", ms: "rrr"} {
		d := newDesk(t, Config{}, 1)
		a := ready(d, "a", Share{})
		b, c := ready(d, "b", Share{}), ready(d, "c", Share{})
		a.state.Mode, b.lag, c.lag = Run, owed, 0
		d.know()
		d.triedAt = d.GPU.now // a trial of running together is under way, so that nobody has a turn
		if owed > 2*ms {
			d.know()
		}
		d.dirty = true
		d.decide().shows(want)
	}
}
