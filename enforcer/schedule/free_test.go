package schedule

import (
	"slices"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// changes of two tenants, and whether something follows.
type changes map[string]struct {
	change func(d *desk, a, b *tenant)
	want   bool
}

// besides sets the part of its lone pace that a tenant had beside others.
func besides(x *tenant, part float64) { x.pace.beside = rate{part * 2048, 0.25} }

// pair returns two tenants that have wanted a GPU for a minute, with known paces.
// They have it all beside one another, and are paused.
func pair(t testing.TB) (d *desk, a, b *tenant) {
	d = newDesk(t, Config{Slices: true}, 1)
	d.at = time.Minute
	a, b = ready(d, "a", Share{}), ready(d, "b", Share{})
	for _, x := range []*tenant{a, b} {
		x.duty, x.part = 1, 0.5
		x.pace = pace{solo: rate{512, 0.0625}, fresh: d.at} // a launch takes 1/8192 s
		besides(x, 1)
	}
	d.triedAt = d.at - tryTime
	return d, a, b
}

// opened returns a pair that is open.
func opened(t testing.TB) (d *desk, a, b *tenant) {
	d, a, b = pair(t)
	d.freedom = freedom{on: true, since: d.at}
	d.decide().shows("oo")
	return d, a, b
}

// All are open where each has its part then, and none needs to be held back. A tenant that lacks little may
// get its part by shorter slices of one that has more.
func TestContent(t *testing.T) {
	light := func(d *desk, x *tenant) { x.burst, x.duty, x.began, x.rested = ms, 0.1, d.at, d.at-linger }
	for what, c := range map[string]struct {
		change            func(d *desk, a, b *tenant)
		content, mendable bool
	}{
		"have it":        {func(d *desk, a, b *tenant) {}, true, false},
		"nearly":         {func(d *desk, a, b *tenant) { besides(a, 0); a.part = 0.02 }, true, false},
		"lacks some":     {func(d *desk, a, b *tenant) { besides(a, 0.479) }, false, true},
		"more":           {func(d *desk, a, b *tenant) { besides(b, 0); b.part = 0.25 }, false, true},
		"too much":       {func(d *desk, a, b *tenant) { besides(a, 0.249) }, false, false},
		"just enough":    {func(d *desk, a, b *tenant) { besides(a, 0.4); besides(b, 0.502) }, false, true},
		"one less":       {func(d *desk, a, b *tenant) { besides(a, 0.4); besides(b, 0.5) }, false, false},
		"both lack":      {func(d *desk, a, b *tenant) { besides(a, 0.4); besides(b, 0.499) }, false, false},
		"in doubt":       {func(d *desk, a, b *tenant) { besides(a, 0.45); a.pace.noise.beside.square, d.freedom.gap = 0.0025, 0 }, true, true},
		"and alone":      {func(d *desk, a, b *tenant) { besides(a, 0.45); a.pace.noise.solo.square, d.freedom.gap = 0.000625, 0 }, true, true},
		"too much doubt": {func(d *desk, a, b *tenant) { besides(a, 0.42); a.pace.noise.beside.square, d.freedom.gap = 0.0025, 0 }, false, true},
		"doubt again":    {func(d *desk, a, b *tenant) { besides(a, 0.45); a.pace.noise.beside.square = 0.0025 }, false, true},
		"nobody gains":   {func(d *desk, a, b *tenant) { besides(a, 0.49); besides(b, 0.49); d.freedom.gap = 0 }, false, false},
		"unknown":        {func(d *desk, a, b *tenant) { a.pace.beside = rate{} }, false, false},
		"unknown, light": {func(d *desk, a, b *tenant) { a.pace.beside = rate{}; light(d, b) }, true, false},
		"unknown lights": {func(d *desk, a, b *tenant) { b.pace.beside = rate{}; light(d, a); light(d, b) }, true, false},
		"of three": {func(d *desk, a, b *tenant) {
			a.wants = false
			x := ready(d, "x", Share{})
			x.pace, x.part = a.pace, 0.5
			besides(x, 0)
		}, false, false},
		"lone":         {func(d *desk, a, b *tenant) { b.wants = false }, false, false},
		"seldom":       {func(d *desk, a, b *tenant) { besides(a, 0); b.wants, b.rested, b.duty = false, d.at, 0.4 }, true, false},
		"hurried":      {func(d *desk, a, b *tenant) { besides(a, 0.8); a.share.Wait = ms }, false, true},
		"new":          {func(d *desk, a, b *tenant) { b.pace.solo = rate{} }, false, false},
		"owes a drain": {func(d *desk, a, b *tenant) { b.lag, b.overran = -1, late }, false, false},
		"idle class":   {func(d *desk, a, b *tenant) { a.share.Class = Idle }, false, false},
		"and gone":     {func(d *desk, a, b *tenant) { ready(d, "c", Share{Class: Idle}).sessions = 0 }, true, false},
		"limit":        {func(d *desk, a, b *tenant) { a.share.Limit = 0.5 }, false, false},
		"limit, lacks": {func(d *desk, a, b *tenant) { a.share.Limit = 0.5; besides(b, 0.4) }, false, false},
		"wide limit":   {func(d *desk, a, b *tenant) { a.share.Limit = 0.51 }, true, false},
	} {
		d, a, b := pair(t)
		if c.change(d, a, b); d.content() != c.content || d.mendable() != c.mendable {
			t.Errorf("%s: content %v, mendable %v", what, d.content(), d.mendable())
		}
	}
}

// A tenant that came lately, or has wanted the GPU for long, counts as if it always did; else its past counts.
func TestOften(t *testing.T) {
	for what, c := range map[string]struct {
		change func(d *desk, a *tenant)
		want   float64
	}{
		"for long":      {func(d *desk, a *tenant) { a.began = d.at - 100*ms - 1 }, 1},
		"not so long":   {func(d *desk, a *tenant) { a.began = d.at - 100*ms }, 0.25},
		"came":          {func(d *desk, a *tenant) { a.began, a.came = d.at, d.at-time.Second+1 }, 1},
		"came long ago": {func(d *desk, a *tenant) { a.began, a.came = d.at, d.at-time.Second }, 0.25},
		"rests":         {func(d *desk, a *tenant) { a.wants, a.rested = false, d.at }, 0.25},
		"open":          {func(d *desk, a *tenant) { a.state.Mode = Open }, 0.25},
	} {
		d, a, b := pair(t)
		a.duty = 0.25
		besides(b, 0.2)
		b.state.Mode, b.duty = Open, 0.5
		c.change(d, a)
		x := ready(d, "x", Share{}) // is not there
		x.wants, x.ever = false, false
		if a.often() != c.want || d.crowd(b) != c.want || d.crowd(a) != 0.5 || d.crowd(x) != min(c.want+0.5, 1) {
			t.Errorf("%s: %v, beside b %v, a %v, x %v", what, a.often(), d.crowd(b), d.crowd(a), d.crowd(x))
		}
		doubt := 0.5 * c.want * 0.2 / 409.6
		if pace, by, known := d.foresee(b); !near(pace, 1-0.5*c.want*0.8-doubt) || !near(by, doubt) || !known {
			t.Errorf("%s: b has %v, or %v more, known %v", what, pace, by, known)
		}
	}
}

// A tenant that lacks too much closes the gate, each time for twice as long, up
// to a bound; what went well for long is forgiven.
func TestFree(t *testing.T) {
	d, a, _ := opened(t)
	a.glimpse.lacks = 100*ms - 1
	d.free()
	fixture.If(t, !d.freedom.on, "closed by less than it bears")
	for _, c := range []struct{ was, gap, want time.Duration }{{0, 0, freeGap}, {time.Second, 2 * time.Second, 4 * time.Second},
		{30*time.Second - 1, 4 * time.Second, 8 * time.Second}, {0, 100 * time.Second, 2 * time.Minute}, {0, 2 * time.Minute, 2 * time.Minute},
		{30 * time.Second, 2 * time.Minute, freeGap}} {
		a.glimpse.lacks, d.freedom = 100*ms, freedom{on: true, since: d.at - c.was, gap: c.gap}
		d.free()
		fixture.If(t, d.freedom != (freedom{since: d.at, lacked: true, gap: c.want}), "%+v: %+v", c, d.freedom)
	}
	for what, c := range map[string]struct {
		change func(d *desk, a, b *tenant)
		want   freedom
	}{
		"content":      {func(d *desk, a, b *tenant) {}, freedom{on: true, since: time.Minute, gap: time.Second}},
		"in vain":      {func(d *desk, a, b *tenant) { besides(a, 0) }, freedom{since: time.Minute, gap: 2 * time.Second}},
		"in turns":     {func(d *desk, a, b *tenant) { d.Scheduler.config.Turns = true }, freedom{gap: time.Second, trial: plain}},
		"measured":     {func(d *desk, a, b *tenant) { d.measured = a }, freedom{gap: time.Second, trial: plain}},
		"not over yet": {func(d *desk, a, b *tenant) { d.trying = true }, freedom{gap: time.Second, trial: plain}},
	} {
		d, a, b := pair(t)
		d.freedom, b.glimpse.launched = freedom{gap: time.Second, trial: plain}, 1
		c.change(d, a, b)
		if d.free(); d.freedom != c.want || c.want.on && b.glimpse != (glimpse{}) {
			t.Errorf("%s: %+v, %+v", what, d.freedom, b.glimpse)
		}
	}
}

// Where no trial would tell more, all are open as soon as it is time.
func TestFreeWithoutATrial(t *testing.T) {
	light := func(d *desk, a, b *tenant) { b.burst, b.duty, b.began, b.rested = ms, 0.1, d.at, d.at-linger }
	hurried := func(d *desk, a, b *tenant) { a.share.Wait = ms }
	for what, c := range map[string]struct {
		change func(d *desk, a, b *tenant)
		early  time.Duration
		on     bool
		curb   float64 // of b
	}{
		"two contend":       {func(d *desk, a, b *tenant) {}, 0, false, 0},
		"one does":          {light, 0, true, 0},
		"one just came":     {func(d *desk, a, b *tenant) { light(d, a, b); b.came = d.at }, 0, false, 0},
		"one began lately":  {func(d *desk, a, b *tenant) { light(d, a, b); b.came, b.wants, b.rested = d.at-settling+1, false, d.at }, 0, false, 0},
		"one awakes":        {func(d *desk, a, b *tenant) { light(d, a, b); b.rested-- }, 0, false, 0},
		"it is open":        {func(d *desk, a, b *tenant) { light(d, a, b); b.rested--; b.state.Mode = Open }, 0, true, 0},
		"early":             {light, 1, true, 0},
		"too early":         {func(d *desk, a, b *tenant) { light(d, a, b); d.freedom.lacked = true }, 1, false, 0},
		"one, unknown":      {func(d *desk, a, b *tenant) { light(d, a, b); a.pace.solo = rate{} }, 0, true, 0},
		"two, unknown":      {func(d *desk, a, b *tenant) { hurried(d, a, b); a.pace.solo = rate{} }, 0, false, 0},
		"another rests":     {func(d *desk, a, b *tenant) { a.wants = false; light(d, a, ready(d, "c", Share{})) }, 0, true, 0},
		"hurried":           {hurried, 0, true, curbFirst},
		"hurried, too soon": {func(d *desk, a, b *tenant) { hurried(d, a, b); d.freedom.lacked = true }, 1, false, 0},
		"may not hurry":     {func(d *desk, a, b *tenant) { hurried(d, a, b); a.wants = false; ready(d, "c", Share{}).pace = b.pace }, 0, false, 0},
	} {
		d, a, b := pair(t)
		d.freedom = freedom{since: d.at - time.Second + c.early, gap: time.Second}
		if c.change(d, a, b); a.wants {
			besides(a, 0)
		}
		if d.free(); d.freedom.on != c.on || b.curb != c.curb || a.curb != 0 {
			t.Errorf("%s: %+v, curbs %v %v", what, d.freedom, a.curb, b.curb)
		}
	}
}

// Who comes while all are open, and contends, is tried beside the others at once.
func TestNewcomer(t *testing.T) {
	for what, c := range (changes{
		"came":         {func(d *desk, a, b *tenant) {}, false},
		"came before":  {func(d *desk, a, b *tenant) { b.came = d.freedom.since }, true},
		"light":        {func(d *desk, a, b *tenant) { b.burst, b.duty = ms, 0.1 }, true},
		"rests again":  {func(d *desk, a, b *tenant) { b.wants = false }, true},
		"beside light": {func(d *desk, a, b *tenant) { a.burst, a.duty = ms, 0.1 }, true},
		"hurries":      {func(d *desk, a, b *tenant) { b.share.Wait = ms }, true},
	}) {
		d, a, b := opened(t)
		d.freedom.gap, b.came = time.Second, d.at+1
		c.change(d, a, b)
		d.at += ms
		d.advance(d.at)
		if d.free(); d.freedom.on != c.want || d.freedom.gap != time.Second || d.freedom.due(d.GPU) {
			t.Errorf("%s: %+v", what, d.freedom)
		}
		if d.advance(b.came + settling); d.freedom.due(d.GPU) == c.want { // it is at its pace
			t.Errorf("%s: %+v, %v later", what, d.freedom, settling)
		}
	}
}

// A trial begins when it is time, and forgets the paces of times in which tenants were held back.
func TestTrialOfFreedom(t *testing.T) {
	for what, c := range (changes{
		"it is time":  {func(d *desk, a, b *tenant) {}, true},
		"too early":   {func(d *desk, a, b *tenant) { d.freedom.since++ }, false},
		"not hopeful": {func(d *desk, a, b *tenant) { a.share.Limit = 0.5 }, false},
		"open":        {func(d *desk, a, b *tenant) { d.freedom.on = true }, false},
		"hurried":     {func(d *desk, a, b *tenant) { a.share.Wait = ms }, false},
	}) {
		d, a, b := pair(t)
		d.triedAt, d.together = d.at-time.Second, true
		d.freedom = freedom{since: d.at - time.Second, gap: time.Second}
		c.change(d, a, b)
		if d.try(); (d.freedom.trial == plain) != c.want || (a.pace.beside == rate{}) != c.want || (d.triedAt == d.at) != c.want {
			t.Errorf("%s: %+v, %+v, tried at %v", what, d.freedom, a.pace.beside, d.triedAt)
		}
		for _, known := range []bool{!c.want, true} { // the first report tells of the time before, too
			a.pace.window.beside = 20 * ms
			d.learn(a, Usage{Launched: 100})
			_, got := a.pace.rate()
			fixture.Equal(t, got, known, "%s: the pace is known", what)
		}
	}
}

// All are open only while each can be judged. Who comes may close the gate, and
// they are open again as soon as it is known.
func TestKnown(t *testing.T) {
	for what, c := range (changes{
		"known":           {func(d *desk, a, b *tenant) {}, true},
		"new":             {func(d *desk, a, b *tenant) { a.pace.solo = rate{} }, false},
		"new and seldom":  {func(d *desk, a, b *tenant) { a.pace.solo, a.duty = rate{}, seldom }, true},
		"other is seldom": {func(d *desk, a, b *tenant) { a.pace.solo, b.duty = rate{}, seldom }, true},
		"new and rests":   {func(d *desk, a, b *tenant) { a.pace.solo, a.wants = rate{}, false }, true},
		"limit":           {func(d *desk, a, b *tenant) { a.share.Limit = 0.5 }, false},
		"idle class":      {func(d *desk, a, b *tenant) { a.share.Class = Idle }, false},
	}) {
		d, a, b := opened(t)
		d.freedom.gap = time.Second
		c.change(d, a, b)
		if d.free(); d.freedom.on != c.want || !c.want && d.freedom.since != d.at-time.Second {
			t.Errorf("%s: %+v", what, d.freedom)
		}
	}
}

// Shorter slices are tried where they may help, and kept if they do. In vain,
// all is as before, and the next trial is later.
func TestTrialOfSlices(t *testing.T) {
	for what, c := range (changes{
		"may help":       {func(d *desk, a, b *tenant) {}, true},
		"switched off":   {func(d *desk, a, b *tenant) { d.Scheduler.config.Slices = false }, false},
		"it cannot help": {func(d *desk, a, b *tenant) { besides(a, 0.2) }, false},
		"not over yet":   {func(d *desk, a, b *tenant) { d.trying = true }, false},
	}) {
		for _, helps := range []bool{true, false} {
			d, a, b := pair(t)
			besides(a, 0.4)
			b.pace.beside = rate{1025, 0.25} // just its part
			d.freedom = freedom{gap: time.Second, trial: plain}
			c.change(d, a, b)
			before := d.trying
			d.free()
			if (d.freedom.trial == curbed) != c.want || d.trying != (c.want || before) || a.curb != 0 || (b.curb != 0) != c.want {
				t.Errorf("%s: %+v, curbs %v %v", what, d.freedom, a.curb, b.curb)
			}
			if !c.want {
				continue
			}
			d.flag()
			if d.free(); a.state.Slice != 0 || b.state.Slice != 800*us || d.triedAt != d.at || a.pace.beside != (rate{}) || !a.pace.before {
				t.Errorf("in the trial: %+v, %+v, %+v", a.state, b.state, a.pace.beside)
			}
			if besides(b, 0.9); helps {
				besides(a, 0.5)
			}
			d.trying = false
			d.judge() // takes no part
			d.free()
			d.flag()
			if f := d.freedom; helps && (f != freedom{on: true, since: d.at, gap: time.Second} || b.state.Slice != 800*us) {
				t.Errorf("of use: %+v, %+v", f, b.state)
			} else if r, _ := a.pace.rate(); !helps && (f != freedom{since: d.at, gap: 2 * time.Second} || r != 0.4 || b.state.Slice != 0 || b.curb != 0) {
				t.Errorf("of no use: %+v, %+v, pace %v", f, b.state, r)
			}
		}
	}
}

// All tenants of a domain are open, or none is; save those that are alone.
func TestFrees(t *testing.T) {
	for what, c := range map[string]struct {
		change func(d *desk, o *GPU)
		want   string // modes on both GPUs
	}{
		"all":            {func(d *desk, o *GPU) {}, "oo oo"},
		"not the others": {func(d *desk, o *GPU) { o.freedom.on = false }, "rr rr"},
		"nor these":      {func(d *desk, o *GPU) { d.freedom.on = false }, "rr rr"},
		"others rest":    {func(d *desk, o *GPU) { o.freedom.on = false; o.find("a").wants, o.find("c").wants = false, false }, "oo RR"},
		"one is alone":   {func(d *desk, o *GPU) { o.freedom.on = false; o.Leave(d.at, "c") }, "oo r"},
		"measured":       {func(d *desk, o *GPU) { o.measured = o.find("c"); o.measured.pace.tried = d.at }, "pr pr"},
		"held":           {func(d *desk, o *GPU) { o.find("c").share.Held = true }, "oo op"},
		"mute":           {func(d *desk, o *GPU) { o.find("c").mute = true }, "oo op"},
	} {
		d := newDesk(t, Config{}, 2) // a gang a, beside b on the first and c on the other
		d.at = time.Minute
		o := d.Scheduler.gpus[1]
		for i, g := range d.Scheduler.gpus {
			g.Join(d.at, "a", Share{})
			g.Join(d.at, []string{"b", "c"}[i], Share{})
			g.freedom.on = true
			for _, x := range g.tenants {
				x.wants, x.ever, x.duty = true, true, 1
			}
		}
		d.Link(d.at, o, "a")
		d.know()
		c.change(d, o)
		d.decide()
		fixture.Equal(t, modes(d.GPU)+" "+modes(o), c.want, "%s", what)
	}
}

// The gate closes for all, and counts them as working.
func TestClose(t *testing.T) {
	d, a, b := opened(t)
	a.glimpse.lacks, b.wants, b.rested, d.dirty = 100*ms, false, d.at, true
	if d.decide().shows("rp"); d.freedom.on || b.began != d.at || a.lag != 100*ms || a.glimpse.lacks != 0 { // what it lacked is owed
		t.Errorf("%+v, b wants since %v", d.freedom, b.began)
	}
	d, a, b = pair(t) // and it opens for who rested lately as if it worked
	a.wants, a.rested, b.wants, b.rested = false, d.at-time.Second, false, d.at-time.Second+1
	d.freedom.on = true
	d.decide().shows("Oo")
}

// A tenant that was alone reported nothing, and counts as working.
func TestCloseForOneMore(t *testing.T) {
	d := newDesk(t, Config{}, 1)
	d.join(Share{}, "a", "b")
	d.want("a")
	d.rest("a")
	d.decide().shows("OR")
	d.want("b")
	if a := d.find("a"); d.decide().State("b").Mode == Open || !a.wants || a.assumed {
		t.Errorf("%s, assumed %v", modes(d.GPU), a.assumed)
	}
}

// A tenant that has rested for long counts as working while the gate closes, until it says that it launched
// nothing. It has no part of the time when the gate opens again.
func TestSleepersHaveNoPart(t *testing.T) {
	for _, c := range []struct {
		tell func(d *desk)
		want string // when the gate is open again
	}{
		{func(d *desk) { d.Rest(d.at, "c", Usage{}) }, "ooO"},
		{func(d *desk) { d.Drained(d.at, "c", Usage{}); d.Rest(d.at, "c", Usage{}) }, "ooO"},
		{func(d *desk) { d.Rest(d.at, "c", Usage{Launched: 1}) }, "ooo"},
		{func(d *desk) { d.Report(d.at, "c", Usage{Launched: 1}); d.rest("c") }, "ooo"},
		{func(d *desk) { d.Want(d.at, "c"); d.rest("c") }, "ooo"},
	} {
		d, a, b := opened(t)
		x := ready(d, "c", Share{Weight: 2})
		x.wants, x.rested, x.came, x.state.Mode, x.burst = false, d.at-time.Minute/2, 1, Open, time.Second
		d.decide().shows("ooO")
		fixture.If(t, !x.state.Beside, "it is alone")
		d.measured, a.pace.tried, d.dirty = a, d.at, true
		if d.decide(); modes(d.GPU)[2:] != "p" || x.came != 1 || x.part != 0 || x.contends(d.at) {
			t.Errorf("%s, came at %v, part %v", modes(d.GPU), x.came, x.part)
		}
		c.tell(d)
		d.measured, b.pace.fresh, d.dirty = nil, d.at, true
		if d.decide().shows(c.want); (a.part == 0.5) != (c.want == "ooO") || (x.burst == time.Second) != (c.want == "ooO") {
			t.Errorf("%s: a has %v, c's burst was %v", c.want, a.part, x.burst)
		}
	}
}

// What an open tenant reports is charged by the load, and served by launches.
func TestLearnFree(t *testing.T) {
	for what, c := range map[string]struct {
		change          func(d *desk, a, b *tenant)
		busy            time.Duration
		launched        float64
		served, charged time.Duration
		duty            float64
		bucket          time.Duration // less
	}{
		"both at work":     {func(d *desk, a, b *tenant) {}, time.Second, 4096, 500 * ms, 500 * ms, 1, 0},
		"half the time":    {func(d *desk, a, b *tenant) { b.duty = 0.75 }, 500 * ms, 2048, 250 * ms, 400 * ms, 0.5, 0},
		"the other open":   {func(d *desk, a, b *tenant) { b.state.Mode = Run }, time.Second, 4096, 500 * ms, time.Second, 1, 0},
		"a light load":     {func(d *desk, a, b *tenant) { b.duty = 0.1 }, 500 * ms, 2048, 250 * ms, 500 * ms, 0.5, 0},
		"unbelievable":     {func(d *desk, a, b *tenant) {}, time.Second, 1e6, time.Second, 500 * ms, 1, 0},
		"unknown":          {func(d *desk, a, b *tenant) { a.pace.solo = rate{} }, 300 * ms, 1, 300 * ms, 300 * ms / 13 * 10, 0.3, 0},
		"within limit":     {func(d *desk, a, b *tenant) { a.share.Limit = 0.5 }, time.Second, 4096, 500 * ms, 500 * ms, 1, 0},
		"charged, but for": {func(d *desk, a, b *tenant) { d.uncharged = ms }, time.Second, 4096, 500 * ms, ms, 1, 0},
		"beyond it":        {func(d *desk, a, b *tenant) { a.share.Limit = 0.4 }, time.Second, 4096, 500 * ms, 500 * ms, 1, 100 * ms},
	} {
		d, a, b := opened(t)
		bucket := a.bucket
		a.wants, a.duty, d.uncharged = false, 0, time.Second
		c.change(d, a, b)
		was := d.uncharged
		d.learnOpen(a, c.launched, c.busy, time.Second)
		fixture.Equal(t, d.uncharged, was-a.stats.Charged, "%s: left to be charged", what)
		if s := a.stats; off(s.Served, c.served) || off(s.Charged, c.charged) || s.Wanted != c.busy || a.duty != c.duty ||
			bucket-a.bucket != c.bucket || !a.wants || off(a.past.slot(d.at).due, c.busy/20) {
			t.Errorf("%s: %+v, duty %v, bucket %v, wants %v, due %v", what, s, a.duty, bucket-a.bucket, a.wants, a.past.slot(d.at).due)
		}
	}
	d, a, _ := opened(t)
	a.wants, a.duty = false, 0.5
	d.learnOpen(a, 0, 0, 0) // twice at the same time
	d.learnOpen(a, 0, 0, 500*ms)
	fixture.If(t, a.duty != 0.25 || a.wants, "duty %v, wants %v", a.duty, a.wants)
	d.learnOpen(a, 0, 250*ms, 500*ms)
	d.learnOpen(a, 0, 250*ms, 500*ms)
	fixture.If(t, a.duty != 0.4375, "duty %v", a.duty)
	d.learnOpen(a, 0, 500*ms, 2*time.Second)
	fixture.If(t, a.duty != 0.25, "duty %v", a.duty)
}

// A glimpse of nearly a second tells what a tenant lacks of its part, and
// whether the slices of the others need to be shorter, or may be longer.
func TestGlimpse(t *testing.T) {
	for what, c := range map[string]struct {
		lacks time.Duration // before
		had   time.Duration // by its launches
		rests time.Duration
		want  time.Duration // lacks, and
		curb  float64       // of the other
	}{
		"has its part":    {0, 500 * ms, 0, 0, 0.5},
		"has some more":   {0, 510 * ms, 0, -10 * ms, 0.5},
		"has more":        {0, 511 * ms, 0, -11 * ms, 0.625},
		"lacks little":    {0, 475 * ms, 0, 25 * ms, 0.5},
		"lacks":           {0, 474 * ms, 0, 26 * ms, 0.4},
		"lacked":          {40 * ms, 510 * ms, 0, 30 * ms, 0.5},
		"lacked, not now": {40 * ms, 500 * ms, 0, 40 * ms, 0.5},
		"has much more":   {0, 600 * ms, 0, -50 * ms, 0.625},
		"its rest is it":  {0, 300 * ms, 200 * ms, 0, 0.5},
	} {
		d, a, b := opened(t)
		b.curb, a.glimpse = 0.5, glimpse{lacks: c.lacks, may: c.lacks, short: c.lacks, due: 500 * ms}
		launched := c.had.Seconds() * 8192
		d.glimpse(a, launched/2, 0, 89*ms)
		fixture.If(t, a.glimpse.over != 89*ms || a.glimpse.lacks != c.lacks, "%s: too early: %+v", what, a.glimpse)
		d.glimpse(a, launched/2, time.Second-c.rests, 911*ms)
		if g := a.glimpse; off(g.lacks, c.want) || !near(b.curb, c.curb) || !near(g.pace, (c.had+c.rests).Seconds()) ||
			g != (glimpse{lacks: g.lacks, may: g.lacks, short: g.lacks, pace: g.pace}) {
			t.Errorf("%s: %+v, curb %v", what, g, b.curb)
		}
	}
	d, a, b := opened(t)
	b.curb, a.share.Wait = 0.5, ms
	d.glimpse(a, 8192, time.Second, 900*ms)
	fixture.If(t, b.curb != 0.5 || a.glimpse.over != 0, "the curb grows to %v beside one that hurries", b.curb)
	a.pace.solo = rate{}
	if d.glimpse(a, 8192, 0, 900*ms); a.glimpse != (glimpse{lacks: -surplus, may: -surplus, short: -surplus}) {
		t.Errorf("of an unknown pace: %+v", a.glimpse)
	}
	for seconds, want := range map[float64]time.Duration{0.089: 89 * ms, 0.5: 499 * ms, 1: 899 * ms} { // launches differ
		d, a, _ := opened(t)
		a.pace.noise.solo.square = seconds * vague * vague
		d.glimpse(a, 0, 0, want)
		fixture.If(t, a.glimpse.over != want, "noise %v s: too early: %+v", seconds, a.glimpse)
		d.glimpse(a, 0, 0, 2*ms)
		fixture.If(t, a.glimpse.over != 0, "noise %v s: %+v", seconds, a.glimpse)
		a.glimpse, a.pace.solo = glimpse{due: 500 * ms}, rate{8192 * seconds, seconds}
		if d.glimpse(a, 4096, time.Second, time.Second); off(a.glimpse.may, 0) || off(a.glimpse.lacks, -surplus) {
			t.Errorf("noise %v s: %+v", seconds, a.glimpse)
		}
	}
}

// Paces aim at a little more than a tenant's part, of which it lacks nothing.
func TestGlimpseAimsHigher(t *testing.T) {
	for had, curb := range map[time.Duration]float64{474 * ms: 0.4, 499 * ms: 0.4, 501 * ms: 0.5, 534 * ms: 0.5, 536 * ms: 0.625} {
		d, a, b := opened(t)
		d.Scheduler.config.Concurrent = true
		b.curb, a.glimpse = 0.5, glimpse{due: 500 * ms}
		d.glimpse(a, had.Seconds()*8192, time.Second, time.Second)
		if g := a.glimpse; !near(b.curb, curb) || off(g.may, 500*ms-had) || off(g.short, 525*ms-had) {
			t.Errorf("had %v: %+v, curb %v", had, g, b.curb)
		}
	}
}

// Slices have bounds. Nobody's grow while another needs that they are short.
func TestTrimAndGrow(t *testing.T) {
	for _, c := range []struct{ was, trimmed, grown float64 }{{0, curbFirst, 0}, {0.45, 0.36, 0.5625}, {0.12, 0.1, 0.15},
		{0.1, 0.1, 0.125}, {0.795, 0.636, 0.99375}, {0.8, 0.64, 0}} {
		d, a, b := opened(t)
		b.curb = c.was
		d.trim(a, lacking)
		fixture.If(t, !near(b.curb, c.trimmed) || a.curb != 0, "%v trimmed: %v", c.was, b.curb)
		a.curb, b.curb, b.glimpse.may = 0.5, c.was, 1
		d.trim(a, lacking)
		fixture.If(t, b.curb != c.was, "%v trimmed though it lacks some: %v", c.was, b.curb)
		d.grow(a, 0.011, 0.011)
		fixture.If(t, !near(b.curb, c.grown) || a.curb != 0.5, "%v grown: %v", c.was, b.curb)
		b.curb, a.glimpse.short, b.glimpse.may, d.Scheduler.config.Slices = c.was, 1, 0, false
		d.trim(a, lacking)
		d.grow(a, 0.011, 0.011)
		fixture.If(t, b.curb != c.was, "%v is %v", c.was, b.curb)
	}
}

// The curb of who lacks some of its part is eased for who has its own; that of others for who has what curbs aim at.
func TestGrowForWhomItMatters(t *testing.T) {
	for _, c := range []struct {
		more, ahead float64
		lacks       time.Duration // the one that is curbed
		short       time.Duration // the other one
		grows       bool
	}{{0.02, -0.01, 1, 1, true}, {0.02, -0.01, 0, 1, false}, {0.02, -0.01, 0, 0, false}, {0.06, 0.02, 0, 0, true},
		{0.06, 0.02, 0, 1, false}, {0.01, 0.02, 1, 0, false}} {
		d, a, b := opened(t)
		b.curb, b.glimpse.may, a.glimpse.short = 0.5, c.lacks, c.short
		d.grow(a, c.more, c.ahead)
		fixture.If(t, (b.curb > 0.5) != c.grows, "%+v: %v", c, b.curb)
	}
}

// A pace begins with the tenant's own part, and no part is so small that its pace would be none on the page. There is
// none while the lone pace is measured.
func TestFirstPace(t *testing.T) {
	for part, want := range map[float64]float64{0.3: 0.3, 0.0004: paceLeast} {
		d, a, b := opened(t)
		d.Scheduler.config.Concurrent, b.part = true, part
		d.trim(a, lacking)
		if d.flag(); b.state.Pace != want || b.state.Slice != 0 || a.state.Pace != 0 {
			t.Errorf("a part of %v: %+v, %+v", part, a.state, b.state)
		}
		d.measured = b
		d.flag()
		fixture.If(t, b.state.Pace != 0, "measured at a pace of %v", b.state.Pace)
		for range 40 {
			d.trim(a, lacking)
		}
		fixture.If(t, b.curb != paceLeast, "trimmed again and again: %v", b.curb)
	}
}

// Who does not drain in time has short slices until its next turn, if they may be
// set, if it is the only one, and if it waits for no other GPU.
func TestSlicesOfOverruns(t *testing.T) {
	for what, c := range map[string]struct {
		change func(d *desk, a *tenant)
		want   time.Duration
	}{
		"late":       {func(d *desk, a *tenant) {}, sliceLeast},
		"drained":    {func(d *desk, a *tenant) { a.drains, a.settled, a.state.Late = false, false, true }, sliceLeast},
		"nudged":     {func(d *desk, a *tenant) { d.nudge(a, ms) }, sliceLeast},
		"next turn":  {func(d *desk, a *tenant) { d.open(a, Run) }, 0},
		"in time":    {func(d *desk, a *tenant) { a.settled = false }, 0},
		"in a gang":  {func(d *desk, a *tenant) { a.unit.members = []*tenant{a, a} }, 0},
		"two are":    {func(d *desk, a *tenant) { d.find("b").settled = true }, 0},
		"not to set": {func(d *desk, a *tenant) { d.Scheduler.config.Slices = false }, 0},
	} {
		d, a, _ := pair(t)
		a.drains, a.settled = true, true
		c.change(d, a)
		d.flag()
		fixture.If(t, a.state.Slice != c.want, "%s: %v", what, a.state.Slice)
	}
}

// Who is open alone tells about what a launch takes. What was measured is better, unless it differs
// little from what the tenant took in more than a second in which it was always busy.
func TestSteady(t *testing.T) {
	type report struct {
		launched   uint64
		busy, over time.Duration
	}
	full, half := report{500, 490 * ms, 500 * ms}, report{500, 50 * ms, 500 * ms}
	for what, c := range map[string]struct {
		reports     []report
		sampled     float64
		later       time.Duration
		about, want float64 // without a measurement, and with it
	}{
		"always busy":       {[]report{full, full, full}, 0.0012, 0, 0.001, 0.001},
		"not at first":      {[]report{half, full, full, full}, 0.0012, 0, 0.001, 0.001},
		"not at the end":    {[]report{full, full, full, half}, 0.0012, 0, 0.001, 0.001},
		"never":             {[]report{{1000, 979 * ms, time.Second}}, 0.001, 0, 0.000979, 0.001},
		"in short reports":  {[]report{{1490, 1341 * ms, 499 * ms}}, 0.0003, 0, 0.0003349, 0.0003},
		"too short":         {[]report{full, full}, 0.0012, 0, 0.001, 0.0012},
		"does more now":     {[]report{full, full, full}, 0.00126, 0, 0.001, 0.00126},
		"does less now":     {[]report{full, full, full}, 0.00083, 0, 0.001, 0.00083},
		"at a higher clock": {[]report{full, full, full}, 0.00084, 0, 0.001, 0.001},
		"long ago":          {[]report{full, full, full}, 0.0012, steadyLast + 1, 0.001, 0.0012},
		"nearly long ago":   {[]report{full, full, full}, 0.0012, steadyLast, 0.001, 0.001},
		"nothing was seen":  {[]report{{0, time.Second, time.Second}}, 0.0012, 0, 0, 0.0012},
	} {
		d, a := lessons(t, 0, 0, 0)
		a.state.Mode = Open
		for _, r := range c.reports {
			d.GPU.now, a.looked = d.at, d.at-r.over
			d.learn(a, Usage{Launched: r.launched, Busy: r.busy})
		}
		if !near(a.cost(), c.about) {
			t.Errorf("%s: about %v", what, a.cost())
		}
		a.pace.solo = costs(c.sampled)
		if a.pace.age(d.at+c.later, 0); !near(a.cost(), c.want) {
			t.Errorf("%s: %v", what, a.cost())
		}
	}
}

// While all are open, what a tenant took alone is known once a further report shows that no other one worked meanwhile.
func TestSteadyBesideOthers(t *testing.T) {
	for what, c := range map[string]struct {
		change func(d *desk, b *tenant, report int)
		want   float64 // seconds of a launch; 0: it was not alone
	}{
		"alone":        {func(d *desk, b *tenant, report int) {}, 0.001},
		"it wants":     {func(d *desk, b *tenant, report int) { b.wants = report > 0 }, 0},
		"it wants now": {func(d *desk, b *tenant, report int) { b.wants = report > 2 }, 0.001},
		"it drains":    {func(d *desk, b *tenant, report int) { b.drains = true }, 0},
		"it worked":    {func(d *desk, b *tenant, report int) { b.rested = d.at - 1900*ms }, 0},
		"it left":      {func(d *desk, b *tenant, report int) { b.wants, b.sessions = true, 0 }, 0.001},
	} {
		d, a, b := opened(t)
		d.at += 3 * time.Second
		b.wants, b.rested = false, d.at
		for report := range 4 {
			d.at += time.Second
			d.GPU.now, a.looked = d.at, d.at-time.Second
			c.change(d, b, report)
			d.learn(a, Usage{Launched: 1000, Busy: time.Second})
		}
		fixture.If(t, !near(a.pace.steady.each(), c.want), "%s: %+v", what, a.pace.steady)
	}
}

// noisy gives a lone pace a relative error, and the pace beside others.
func noisy(t *tenant, off, pace float64) {
	t.pace.noise.solo.square, t.glimpse.pace = off*off*t.pace.solo.seconds, pace
}

// The lone pace of an open tenant is measured again if it is in doubt.
func TestUnsure(t *testing.T) {
	for what, c := range (changes{
		"sure":      {func(d *desk, a, b *tenant) { a.glimpse.may, a.glimpse.pace = 25*ms, 1.15 }, false},
		"lacks":     {func(d *desk, a, b *tenant) { a.glimpse.may = 25*ms + 1 }, true},
		"too fast":  {func(d *desk, a, b *tenant) { a.glimpse.pace = 1.16 }, true},
		"old":       {func(d *desk, a, b *tenant) { a.pace.fresh-- }, true},
		"new":       {func(d *desk, a, b *tenant) { a.pace.solo = rate{} }, true},
		"brief":     {func(d *desk, a, b *tenant) { a.pace.solo = rate{64, 64. / 8192}; a.pace.tried = d.freedom.since }, true},
		"but again": {func(d *desk, a, b *tenant) { a.pace.solo = rate{64, 64. / 8192}; a.pace.tried = d.freedom.since + 1 }, false},
		"waits":     {func(d *desk, a, b *tenant) { a.glimpse.pace, d.Scheduler.gpus[1].find("a").wants = 2, true }, false},
		"rests":     {func(d *desk, a, b *tenant) { a.glimpse.pace, d.Scheduler.gpus[1].find("a").wants = 2, false }, true},
		"linked":    {func(d *desk, a, b *tenant) { a.glimpse.pace = 2; d.Link(d.at, d.Scheduler.gpus[1], "a") }, true},
		"may lack":  {func(d *desk, a, b *tenant) { noisy(a, 0.11, 0.56) }, true},
		"has it":    {func(d *desk, a, b *tenant) { noisy(a, 0.11, 0.57) }, false},
		"is sure":   {func(d *desk, a, b *tenant) { noisy(a, 0.049, 0.5) }, false},
		"lately":    {func(d *desk, a, b *tenant) { noisy(a, 0.11, 0.56); a.pace.tried = d.at - time.Second }, false},
		"held back": {func(d *desk, a, b *tenant) { d.freedom.on = false }, true},
	}) {
		d, a, b := opened(t)
		d.Scheduler.Add()
		d.Scheduler.Add()
		d.Scheduler.gpus[1].Join(d.at, "a", Share{})
		d.Scheduler.gpus[1].find("a").wants = what == "linked"
		a.pace.fresh, d.freedom.since = d.at-time.Minute, d.at-5*time.Second
		c.change(d, a, b)
		d.measure()
		fixture.If(t, (d.measured == a) != c.want, "%s: measured %v", what, !c.want)
	}
}

// An open tenant is owed its part by the second, or what it needs if it hurries.
// After two seconds of silence it has no work.
func TestOpenAges(t *testing.T) {
	for _, c := range []struct {
		wait time.Duration
		part float64
		want time.Duration
	}{{0, 0.5, 50 * ms}, {ms, 0.5, 85 * ms}, {ms, 0.9, 90 * ms}} {
		d, a, b := opened(t)
		a.share.Wait, a.share.Weight, b.share.Weight = c.wait, c.part, 1-c.part
		if d.Look(d.at + 100*ms); off(a.glimpse.due, c.want) || a.duty != 1 || a.lag != 0 {
			t.Errorf("%+v: due %v, duty %v, lag %v", c, a.glimpse.due, a.duty, a.lag)
		}
		d.Look(d.at + 2*time.Second)
		fixture.If(t, !a.wants, "it rests too early")
		if d.Look(d.at + 2*time.Second + 1); a.wants || a.duty != 0 || a.rested != a.looked || a.burst != 0 || d.wake != 0 {
			t.Errorf("wants %v, duty %v, rested at %v, to be called at %v", a.wants, a.duty, a.rested, d.wake)
		}
	}
}

// Slices are set while all are open, and end with the last session. Who is open beside others is told so.
func TestSlicesOnPages(t *testing.T) {
	d, a, b := opened(t)
	a.curb = 0.5
	d.Changed()
	if d.flag(); a.state != (State{Beside: true, Haste: true, Turn: a.state.Turn, Slice: ms}) || !d.Changed() || b.state.Slice != 0 {
		t.Errorf("%+v, %+v", a.state, b.state)
	}
	d.flag()
	fixture.If(t, d.Changed(), "the same is news")
	d.freedom.end(d.GPU)
	d.freedom.gap, d.dirty = never, true
	d.decide()
	fixture.If(t, a.state.Slice != 0, "%+v", a.state)
	d.Leave(d.at, "b")
	d.pass(time.Second).shows("o")
	s := d.State("a")
	fixture.If(t, s != (State{Turn: s.Turn}), "alone: %+v", s)
	a.glimpse.lacks, a.curb = 1, 0.5
	d.Leave(d.at, "a")
	fixture.If(t, a.curb != 0 || a.glimpse != (glimpse{}), "gone: %v, %+v", a.curb, a.glimpse)
}

// All report often at first, after somebody was curbed, and while somebody lacks some of its part.
func TestWatched(t *testing.T) {
	for what, c := range (changes{
		"calm":          {func(d *desk, a, b *tenant) {}, false},
		"begun":         {func(d *desk, a, b *tenant) { d.freedom.since++ }, true},
		"curbs":         {func(d *desk, a, b *tenant) { b.curb = 0.5 }, true},
		"curbed lately": {func(d *desk, a, b *tenant) { d.trim(a, lacking); b.curb = 0 }, true},
		"again":         {func(d *desk, a, b *tenant) { b.curb = 0.5; d.trim(a, lacking); b.curb = 0 }, true},
		"long ago":      {func(d *desk, a, b *tenant) { d.trim(a, lacking); b.curb = 0; d.GPU.now += watch }, false},
		"lacks":         {func(d *desk, a, b *tenant) { a.glimpse.may = lackMost/4 + 1 }, true},
		"nearly":        {func(d *desk, a, b *tenant) { a.glimpse.may = lackMost / 4 }, false},
		"closed":        {func(d *desk, a, b *tenant) { b.curb = 0.5; d.freedom.on = false }, false},
	}) {
		d, a, b := opened(t)
		d.freedom.since = d.at - watch
		c.change(d, a, b)
		fixture.Equal(t, d.watched(), c.want, "%s: watched", what)
	}
}

// A tenant comes with its first wish, and with one after a long rest.
func TestCame(t *testing.T) {
	for rest, want := range map[time.Duration]time.Duration{time.Second: time.Minute, time.Second + 1: time.Minute + time.Second + 1} {
		d := newDesk(t, Config{}, 1)
		d.at = time.Minute
		d.join(Share{}, "a")
		d.want("a")
		d.rest("a")
		d.at += rest
		d.freedom.gap = freeMost
		if d.want("a"); d.find("a").came != want || (d.freedom.gap == 0) != (want == d.at) {
			t.Errorf("came at %v after a rest of %v, to be tried after %v", d.find("a").came, rest, d.freedom.gap)
		}
	}
}

// So does a tenant that is open and did nothing for long before its report.
func TestCameWhileOpen(t *testing.T) {
	for idle, came := range map[time.Duration]bool{time.Second: false, time.Second + 1: true} {
		d, a, _ := opened(t)
		a.burst = ms
		d.at += idle + 5*ms
		d.Report(d.at, "a", Usage{Busy: 5 * ms})
		fixture.If(t, (a.came == d.at) != came || !a.wants || a.burst != ms,
			"after %v: came at %v, wants %v", idle, a.came, a.wants)
	}
}

// compare runs programs without the hook and with it. It returns their rates after
// the first 4 s, the world with the hook, and the decisions in that time.
func compare(t testing.TB, long time.Duration, kinds []string, parts []float64, change func(w *world)) (
	plain, hooked []float64, w *world, decisions int) {
	for _, rates := range []*[]float64{&plain, &hooked} {
		var programs []*program
		for i, name := range kinds {
			programs = append(programs, kind(name, parts[i]))
		}
		w = newWorld(t, rates == &plain, nil, programs...)
		change(w)
		w.run(4 * time.Second)
		decisions = w.decides
		w.run(long - w.now)
		for _, p := range programs {
			*rates = append(*rates, p.rate(4*time.Second, long))
		}
	}
	return plain, hooked, w, w.decides - decisions
}

// Where plain time slices give everybody its part, nobody loses by the gate, and hardly anything is decided.
func TestPlainWhereThatIsFair(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kinds []string
		parts []float64
	}{{[]string{"gpt2", "decode"}, []float64{70, 30}}, {[]string{"cupy", "tick"}, []float64{70, 30}},
		{[]string{"gpt2", "burst"}, []float64{50, 50}}, {[]string{"queue", "burst"}, []float64{70, 30}},
		{[]string{"loader", "steps"}, []float64{70, 30}}, {[]string{"gpt2", "queue"}, []float64{70, 30}}} {
		plain, hooked, _, decisions := compare(t, 14*time.Second, c.kinds, c.parts, func(*world) {})
		for i := range hooked {
			if hooked[i] < 0.98*plain[i] || decisions > 24 { // a report a second of each, and two measurements
				t.Errorf("%v: %.4g steps/s, plain %.4g, %d decisions", c.kinds, hooked, plain, decisions)
			}
		}
	}
}

// Where programs run at once, who is ahead is paced, and everybody has its part. Programs that the
// processor bounds have more than turns would give them.
func TestPacesOfConcurrentPrograms(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kinds []string
		parts []float64
		sum   float64 // at least
	}{{[]string{"gpt2", "queue"}, []float64{70, 30}, 1.08}, {[]string{"queue", "gpt2"}, []float64{70, 30}, 1.02},
		{[]string{"steps", "jax"}, []float64{70, 30}, 1}, {[]string{"jax", "cupy"}, []float64{70, 30}, 0.98},
		{[]string{"cupy", "queue"}, []float64{50, 50}, 0.98}, {[]string{"gpt2", "decode"}, []float64{70, 30}, 1.94},
		{[]string{"loader", "steps"}, []float64{70, 30}, 1.34}} {
		_, hooked, w, _ := compare(t, 14*time.Second, c.kinds, c.parts, func(w *world) { w.scheduler.config.Concurrent = true })
		sum := 0.0
		for i := range hooked {
			hooked[i] /= alone(t, c.kinds[i]).lone
			if sum += hooked[i]; hooked[i] < c.parts[i]/100-margin {
				t.Errorf("%v: %.3f", c.kinds, hooked)
			}
		}
		if sum < c.sum || !w.gpus[0].g.freedom.on {
			t.Errorf("%v: %.3f, open: %v", c.kinds, hooked, w.gpus[0].g.freedom.on)
		}
	}
}

// A decoding program that hurries is nearly as fast as alone, by short slices of the
// others, which lose little. Where slices may not be set, none is.
func TestDecodingGoesFirst(t *testing.T) {
	t.Parallel()
	for i, kinds := range [][]string{{"decode", "gpt2"}, {"decode", "queue"}, {"decode", "steps"}, {"decode", "queue", "gpt2"}} {
		for j, share := range []Share{{Class: Realtime, Limit: 0.9, Weight: 30}, {Wait: ms, Weight: 30}} {
			on := i != j
			plain, hooked, w, _ := compare(t, 7*time.Second, kinds, []float64{30, 35, 35}, func(w *world) {
				w.scheduler.config.Slices, w.programs[0].Share = on, share
			})
			p99, most := percentile(w.programs[0].took[60:], 0.99), alone(t, "decode").alone*5/4
			set := slices.ContainsFunc(w.gpus[0].ranks, func(r *rank1) bool { return r.seen.Slice != 0 })
			for i := range hooked[1:] {
				if on != set || on && (p99 > most || hooked[1+i] < 0.9*plain[1+i]) {
					t.Errorf("%v, %+v: slices %v, p99 %v of %v, %.4g steps/s, plain %.4g", kinds, share, set, p99, most, hooked, plain)
				}
			}
		}
	}
}

// A limit holds beside a tenant that hardly needs the GPU.
func TestLimitBesideLight(t *testing.T) {
	t.Parallel()
	_, _, w, _ := compare(t, 8*time.Second, []string{"queue", "tick"}, []float64{30, 70}, func(w *world) { w.programs[0].Limit = 0.25 })
	part := w.programs[0].ranks[0].done.Seconds() / w.now.Seconds()
	fixture.If(t, part < 0.23 || part > 0.27, "it has %.3f of the GPU", part)
}

// A tenant whose launches take longer from a moment on has its part again soon.
func TestWorkGrows(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"gpt2", "loader"} {
		a, b, lone := kind(name, 70), kind("queue", 30), kind(name, 70)
		w := newWorld(t, false, nil, a, b)
		w.run(5 * time.Second)
		fixture.If(t, !w.gpus[0].g.freedom.on, "%s: not open", name)
		a.kernel, lone.kernel = 3*a.kernel, 3*a.kernel
		newWorld(t, true, nil, lone).run(5 * time.Second)
		w.run(3 * time.Second)
		if part := a.rate(6*time.Second, 8*time.Second) / lone.rate(begin, 5*time.Second); part < 0.66 { // a step is 0.025
			t.Errorf("%s has %.3f", name, part)
		}
	}
}

// A tenant that works for seconds and rests for seconds has its part each time, from the beginning.
func TestComesAndGoes(t *testing.T) {
	t.Parallel()
	a := &program{name: "a", Share: Share{Weight: 70}, kernel: 200 * us, cpu: 5 * us, count: 8000, gap: 2 * time.Second}
	w := newWorld(t, false, nil, a, kind("queue", 29), kind("tick", 1))
	w.run(20 * time.Second)
	if len(a.took) < 4 || slices.Max(a.took[1:]) > 2400*ms { // alone 1.6 s, and at its part of that pace 2.29
		t.Errorf("its work took %v", a.took)
	}
}

// TestPacesDoNotHunt: who lacks some of its part by its own pace has that eased, and nobody else is paced for it.
func TestPacesDoNotHunt(t *testing.T) {
	t.Parallel()
	a, b := kind("jax", 90), kind("queue", 10)
	w := newWorld(t, false, nil, a, b)
	w.scheduler.config.Concurrent = true
	for w.run(2 * time.Second); w.now < 14*time.Second; {
		from := w.now
		w.run(2 * time.Second)
		fixture.AtLeast(t, a.rate(from, w.now)/alone(t, "jax").lone, 0.88, "jax has … of its lone pace from %v", from)
		fixture.AtLeast(t, b.rate(from, w.now)/alone(t, "queue").lone, 0.08, "queue has … of its lone pace from %v", from)
	}
}
