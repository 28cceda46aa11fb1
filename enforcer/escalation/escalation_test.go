package escalation

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

const faulty = "GPU-faulty" // a GPU with a hardware fault

var someone = audit.Subject{Tenant: "team", Workload: "unit:train.service"}

// A climber is an escalation with one audit per second. A letter stands for each audit.
type climber struct {
	Escalation
	now     time.Time
	steps   policy.Steps
	actions int
	result  string // result of each action
}

func newClimber() *climber {
	return &climber{now: time.Unix(1e9, 0).UTC(), actions: 100, result: Done,
		steps: policy.Steps{Mode: policy.Terminate, Confirm: 3, Of: 5, Hold: 10 * time.Second, Grace: 30 * time.Second}}
}

// audit returns the findings of one letter for all subjects: x a violation, . none, ? unknown, h a violation on a GPU
// with a fault, q none on it, g gone, p not seen in an incomplete audit, d a violation that may be the broker's fault;
// of a suspended subject: s not seen, P not seen in an incomplete audit, D in doubt; r a violation of one whose memory
// is on its way back; u a violation of one of whom nothing else is known.
func (c *climber) audit(letter rune, all ...audit.Subject) Findings {
	f := Findings{Seen: map[audit.Subject]Status{}, Excused: map[string]bool{faulty: true}, Actions: c.actions,
		Partial: letter == 'p' || letter == 'P',
		Steps:   func(string) policy.Steps { return c.steps },
		Holds:   audit.Holds{Workloads: map[audit.Subject]audit.Hold{}}}
	for _, s := range all {
		if letter == 'd' || letter == 'D' {
			f.Holds.Workloads[s] = audit.Starved
		}
		if strings.ContainsRune("sPD", letter) {
			f.Holds.Workloads[s] |= audit.Suspended
			continue
		}
		gpu := "GPU-good"
		if letter == 'h' || letter == 'q' {
			gpu = faulty
		}
		if letter != 'g' && letter != 'p' {
			f.Seen[s] = Status{Known: letter != '?' && letter != 'u', GPUs: []string{gpu}}
		}
		if letter == 'r' {
			f.Holds.Workloads[s] = audit.Returning
		}
		if strings.ContainsRune("xhdru", letter) {
			f.Violations = append(f.Violations,
				audit.Violation{Subject: s, GPU: gpu, Objective: audit.Unhooked, PIDs: []int{7},
					Text: "a process goes around the hook"})
		}
	}
	return f
}

// judge audits a second after the last audit. It returns the steps, with the results of actions.
func (c *climber) judge(f Findings) []Step {
	c.now = c.now.Add(time.Second)
	steps := c.Judge(c.now, f)
	for i := range steps {
		if steps[i].Result == "" {
			steps[i].Result = c.result
			c.Settle(steps[i])
		}
	}
	return steps
}

// climb returns the steps that the letters cause: "3 warn done" for the third.
func (c *climber) climb(letters string) string {
	var all []string
	for i, letter := range letters {
		for _, s := range c.judge(c.audit(letter, someone)) {
			all = append(all, fmt.Sprintf("%d %s %s", i+1, s.To, s.Result))
		}
	}
	return strings.Join(all, ", ")
}

// at holds that a subject is at a level.
func (c *climber) at(t *testing.T, s audit.Subject, want policy.Level) {
	t.Helper()
	level, _ := c.Level(s)
	fixture.Equal(t, level, want, "%s is at", s.Workload)
}

// A subject comes down at once and is forgotten if the policy no longer has its tenant, as after a job's end.
func TestEscalationForgetsTenantsThatAreNoMore(t *testing.T) {
	t.Parallel()
	c := newClimber()
	c.climb("xxxxxxxxx")
	c.at(t, someone, policy.Pause)
	c.steps = policy.Steps{}
	fixture.Equal(t, c.climb("gg"), "1 observe done", "without its tenant")
	if on, actions := c.Stats(); len(on)+len(actions) != 0 || len(c.Save().Standing) != 0 {
		t.Errorf("it is still there: %v, %v", on, actions)
	}
}

var repeated = regexp.MustCompile(`(?:\((.+?)\)|(.))\{(\d+)\}`)

// letters writes out repeated letters.
func letters(s string) string {
	return repeated.ReplaceAllStringFunc(s, func(one string) string {
		m := repeated.FindStringSubmatch(one)
		n, _ := strconv.Atoi(m[3])
		return strings.Repeat(m[1]+m[2], n)
	})
}

// TestEscalation holds the steps in testdata/climbs.tsv.
func TestEscalation(t *testing.T) {
	for _, row := range fixture.Rows(t, "testdata/climbs.tsv") {
		t.Run(row[0], func(t *testing.T) {
			c := newClimber()
			var got []string
			for _, word := range strings.Fields(row[1]) {
				switch key, value, _ := strings.Cut(word, "="); key {
				case "mode":
					fixture.Must(t, c.steps.Mode.UnmarshalText([]byte(value)))
				case "of":
					fixture.Value(fmt.Sscanf(value, "%d/%d", &c.steps.Confirm, &c.steps.Of))(t)
				case "shadow":
					c.steps.Shadow = value == "on"
				case "none":
					c.steps = policy.Steps{}
				default:
					got = append(got, c.climb(letters(word)))
				}
			}
			fixture.Equal(t, strings.Join(got, " | "), strings.TrimPrefix(row[2], "none"), "%s", row[1])
		})
	}
}

// A brake that holds back the end of a suspended subject is told of once.
func TestBrakeOfSuspended(t *testing.T) {
	t.Parallel()
	c := newClimber()
	c.actions = 3
	fixture.Equal(t, c.climb(strings.Repeat("x", 12)+strings.Repeat("s", 600)), "3 warn done, 6 throttle done, "+
		"9 pause done, 12 suspend done, 42 terminate braked, 606 terminate done", "climb")
}

// The step to Terminate after a suspension has the evidence that led there.
func TestEvidenceOfSuspended(t *testing.T) {
	t.Parallel()
	c := newClimber()
	c.climb(strings.Repeat("x", 12) + strings.Repeat("s", 29))
	last := c.judge(c.audit('s', someone))
	fixture.If(t, len(last) != 1 || last[0].To != policy.Terminate || len(last[0].Evidence) != 1 ||
		last[0].Why != "nobody asked for it within 30s of its suspension", "%+v", last)
}

// A subject that cannot be suspended stays paused at the level, uses up no action, and is terminated if it goes on.
func TestRefusedSuspension(t *testing.T) {
	t.Parallel()
	c := newClimber()
	c.actions = 3
	c.climb("xxxxxxxxx")
	c.result = Refused
	fixture.Equal(t, c.climb("xxx"), "3 suspend refused", "climb")
	c.result = Done
	fixture.Equal(t, c.climb("xxx"), "3 terminate done", "after that")
	c = newClimber()
	c.climb("xxxxxxxxx")
	c.result = Refused
	c.climb("xxx")
	fixture.Equal(t, c.climb(strings.Repeat(".", 10)), "10 pause refused", "clean")
}

// A suspended subject whose owner asks for it is throttled, and climbs again if it violates its quota.
func TestRelease(t *testing.T) {
	t.Parallel()
	c := newClimber()
	for _, letters := range []string{"xxxxxxxxx", "xxxssss"} {
		_, is := c.Release(c.now, someone)
		fixture.If(t, is, "who is not suspended is released")
		c.climb(letters)
	}
	step, is := c.Release(c.now, someone)
	fixture.If(t, !is || step.Subject != someone || step.From != policy.Suspend || step.To != policy.Throttle || step.Why == "" ||
		step.Result != "" || !step.Time.Equal(c.now), "%+v", step)
	step.Result = Done
	c.Settle(step)
	if _, actions := c.Stats(); !slices.ContainsFunc(actions,
		func(a wire.ActionStats) bool { return a.Action == "resume" && a.Result == Done }) {
		t.Errorf("%+v", actions)
	}
	fixture.Equal(t, c.climb("xxxxxx"), "3 pause done, 6 suspend done", "again")
	c.steps.Shadow = true
	c.climb("s")
	if _, is := c.Release(c.now, someone); is {
		t.Error("in shadow mode nobody is suspended")
	}
}

func TestStepSaysWhy(t *testing.T) {
	c := newClimber()
	c.climb("xx")
	up := c.judge(c.audit('x', someone))
	fixture.If(t, len(up) != 1 || up[0].Why != "3 of 5 audits found a violation: a process goes around the hook" ||
		len(up[0].Evidence) != 1 || up[0].Evidence[0].PIDs[0] != 7 || !up[0].Time.Equal(c.now) ||
		up[0].From != policy.Observe, "up: %+v", up)
	c.climb(".........")
	down := c.judge(c.audit('.', someone))
	fixture.If(t, len(down) != 1 || down[0].Why != "no violation for 10s" || down[0].Evidence != nil ||
		down[0].From != policy.Warn, "down: %+v", down)
}

func TestUngovernedAreNotTouched(t *testing.T) {
	c := newClimber()
	for range 20 {
		s := c.judge(c.audit('x', audit.Subject{Tenant: policy.DefaultTenant, Workload: "user:0"},
			audit.Subject{Workload: "user:1"}))
		fixture.Stop(t, s != nil, "%+v", s)
	}
	escalation, _ := c.Stats()
	fixture.Equal(t, len(escalation), 0, "escalated workloads")
}

func TestFailedStepIsTriedAgainLater(t *testing.T) {
	for _, result := range []string{Failed, Missed} {
		c := newClimber()
		c.climb("xxx")
		c.result = result
		// The window begins again, and nothing is retried within ten seconds.
		fixture.Equal(t, c.climb(strings.Repeat("x", 24)),
			"3 throttle "+result+", 13 throttle "+result+", 23 throttle "+result, "climb")
		c.at(t, someone, policy.Warn)
		fixture.Equal(t, len(c.brake.actions), 0, "the brake counts … that came to nothing")
		c.result = Done
		fixture.Contains(t, c.climb(strings.Repeat("x", 10)), "throttle done", "when there is a way again")
	}
}

func TestTimeGoesBackwardsAndLeaps(t *testing.T) {
	c := newClimber()
	c.climb("xxx......")
	c.now = c.now.Add(-24 * time.Hour)
	fixture.Equal(t, c.climb("...."), "", "after it went back, and only 9 seconds were clean")
	fixture.Equal(t, c.climb("."), "1 observe done", "after ten clean seconds")
	c = newClimber()
	c.steps.Hold = time.Minute
	c.climb("xxx")
	c.now = c.now.Add(time.Hour) // the host was suspended
	fixture.Equal(t, c.climb("."), "", "one audit is no clean hour")
}

// crowd returns n subjects, in order.
func crowd(n int) []audit.Subject {
	all := make([]audit.Subject, n)
	for i := range all {
		all[i] = audit.Subject{Tenant: "team", Workload: fmt.Sprintf("slurm:%05d", i)}
	}
	return all
}

func TestBrake(t *testing.T) {
	c := newClimber()
	c.actions, c.steps.Mode = 3, policy.Throttle
	all := crowd(5)
	var got []string
	look := func(from, to int) {
		got = nil
		for i := from; i <= to; i++ {
			for _, s := range c.judge(c.audit('x', all...)) {
				got = append(got, fmt.Sprintf("%d %s %s %s", i, s.Workload[len(s.Workload)-1:], s.To, s.Result))
			}
		}
	}
	look(1, 3) // all are warned, which is not an action
	fixture.Need(t, len(got), 5, "%v", got)
	if since, held := c.Brake(); !since.IsZero() || held != 0 {
		t.Fatalf("the brake is on: %v, %d", since, held)
	}
	look(4, 600)
	want := []string{"6 0 throttle done", "6 1 throttle done", "6 2 throttle done", "6 3 throttle braked",
		"6 4 throttle braked"}
	fixture.Stop(t, !slices.Equal(got, want), "got %v, want %v: said once", got, want)
	since, held := c.Brake()
	fixture.If(t, held != 2 || !since.Equal(time.Unix(1e9+6, 0)), "the brake holds back %d since %v", held, since)
	c.at(t, all[3], policy.Warn) // it is held back
	look(601, 606)               // ten minutes after the first
	fixture.EqualSlices(t, got, []string{"606 3 throttle done", "606 4 throttle done"}, "when it lets go")
	if since, held := c.Brake(); !since.IsZero() || held != 0 {
		t.Errorf("the brake is on still: %v, %d", since, held)
	}
}

func TestBrakeDoesNotHoldDown(t *testing.T) {
	c := newClimber()
	c.actions = 2
	fixture.Equal(t, c.climb("xxxxxxxxxxxx"+strings.Repeat(".", 40)), "3 warn done, 6 throttle done, 9 pause done, "+
		"12 suspend braked, 22 throttle done, 32 warn done, 42 observe done", "climb")
	since, _ := c.Brake()
	fixture.If(t, !since.IsZero(), "no workload is held back, but the episode continues")
	c = newClimber()
	c.actions, c.steps.Shadow = 0, true
	fixture.Equal(t, c.climb("xxxxxx"), "3 warn done, 6 throttle shadow", "shadow is not braked")
}

func TestBrakeReleasesTheLongestWaitFirst(t *testing.T) {
	c := newClimber()
	c.actions, c.steps.Mode = 1, policy.Throttle
	all := crowd(4)
	from := []int{601, 1, 20, 10} // seconds
	var got []string
	for i := 1; i <= 1300; i++ {
		f := c.audit('.', all...)
		for n, s := range all {
			if i >= from[n] {
				f.Violations = append(f.Violations, c.audit('x', s).Violations...)
			}
		}
		for _, s := range c.judge(f) {
			if s.To == policy.Throttle {
				got = append(got, fmt.Sprintf("%d %s %s", i, s.Workload[len(s.Workload)-1:], s.Result))
			}
		}
	}
	fixture.EqualSlices(t, got, []string{"6 1 done", "15 3 braked", "25 2 braked", "606 3 done", "606 0 braked",
		"1206 2 done"}, "it lets go")
}

func TestStats(t *testing.T) {
	c := newClimber()
	c.actions = 2
	c.climb("xxxxxxxxxxxx" + strings.Repeat(".", 20))
	escalation, actions := c.Stats()
	fixture.EqualSlices(t, escalation, []wire.EscalationStats{{Tenant: "team", Workload: someone.Workload, Level: "warn"}},
		"the escalation")
	var got []string
	for _, a := range actions {
		got = append(got, fmt.Sprint(a.Action, " ", a.Result, " ", a.Count))
	}
	fixture.EqualSlices(t, got, []string{"pause done 1", "resume done 2", "suspend braked 1", "throttle done 1", "warn done 1"},
		"the actions")
	c.steps.Shadow = true
	c.climb("?")
	escalation, _ = c.Stats()
	fixture.If(t, !escalation[0].Shadow, "the statistics do not show that it is in shadow mode")
}

func TestEscalationIsBounded(t *testing.T) {
	c := newClimber()
	all := crowd(maxStanding + 100)
	c.judge(c.audit('x', all...))
	fixture.Need(t, len(c.on), maxStanding, "… are on it")
	c.judge(c.audit('x', all[maxStanding:]...))
	for _, s := range all[:maxStanding] {
		fixture.Stop(t, c.on[s] == nil, "%v was on its way up, and made room", s)
	}
	for range 70 { // a subject with old violations makes room
		c.judge(c.audit('.', all...))
	}
	c.judge(c.audit('x', all[maxStanding:]...))
	fixture.Equal(t, len(c.on), maxStanding, "… are on it")
	for _, s := range all[maxStanding:] {
		fixture.Stop(t, c.on[s] == nil, "there was no room for %v", s)
	}
	for range int(forgetAfter/longestAudit) - 1 {
		c.now = c.now.Add(longestAudit - time.Second)
		c.judge(c.audit('.'))
	}
	c.now = c.now.Add(longestAudit - 2*time.Second)
	c.judge(c.audit('.'))
	fixture.Equal(t, len(c.on), 100, "just before an hour … are on it")
	c.judge(c.audit('.'))
	fixture.Equal(t, len(c.on), 0, "after an hour … are on it")
}

func TestEscalationSurvivesRestart(t *testing.T) {
	c := newClimber()
	c.actions = 3
	c.climb("xxxxxxxxxx") // paused after two actions, and one more audit
	text := fixture.Value(json.Marshal(c.Save()))(t)
	var state State
	fixture.Must(t, json.Unmarshal(text, &state))
	next := newClimber()
	next.now, next.actions = c.now, 3
	next.Restore(next.now, state)
	level, shadow := next.Level(someone)
	fixture.Stop(t, level != policy.Pause || shadow, "it stands at %v, shadow %v", level, shadow)
	if !reflect.DeepEqual(next.Save().Standing, c.Save().Standing) {
		t.Errorf("%+v is not %+v", next.Save(), c.Save())
	}
	other := audit.Subject{Tenant: "team", Workload: "other"}
	for range 6 {
		next.judge(next.audit('x', other))
	}
	next.at(t, other, policy.Throttle) // one more action was left
	for range 3 {
		next.judge(next.audit('x', other))
	}
	_, held := next.Brake()
	fixture.Equal(t, held, 1, "subjects that the brake holds, as before")
	// eight of its ten clean seconds passed before the restart
	fixture.Equal(t, next.climb("...."), "2 throttle done", "on the way down")
}

func TestRestoreOfNonsense(t *testing.T) {
	var l Escalation
	state := State{Standing: []Standing{{Tenant: "a", Level: "hell"}, {Tenant: "", Level: "pause"},
		{Tenant: policy.DefaultTenant, Level: "pause"}, {Tenant: "b", Level: "observe"}, {Tenant: "c", Level: "pause"}},
		Actions: []time.Time{time.Unix(0, 0), time.Unix(1e9+1e6, 0)}}
	for _, s := range crowd(2 * maxStanding) {
		state.Standing = append(state.Standing, Standing{Tenant: s.Tenant, Workload: s.Workload, Level: "warn"})
	}
	l.Restore(time.Unix(1e9, 0), state)
	fixture.If(t, len(l.on) != maxStanding || l.on[audit.Subject{Tenant: "c"}] == nil || l.on[audit.Subject{Tenant: "a"}] != nil ||
		len(l.brake.actions) != 1, "%d on it, %d actions", len(l.on), len(l.brake.actions))
}

// TestEscalationAtRandom checks the invariants under random findings. A subject climbs one level at a time, only with
// evidence of this audit, and never beyond the mode. Actions never exceed the brake. No subject moves without an audit
// that knows.
func TestEscalationAtRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 6))
	c := newClimber()
	c.actions = 5
	all := crowd(40)
	var acted []int
	for i := range 8000 {
		c.steps.Mode, c.steps.Shadow = policy.Level(1+i/500%4), i/700%4 == 3
		c.result = []string{Done, Done, Done, Failed, Missed}[r.IntN(5)]
		who, f := map[audit.Subject]rune{}, c.audit('.')
		for _, s := range all {
			who[s] = rune("x..?hqgxx."[r.IntN(10)])
			one := c.audit(who[s], s)
			f.Violations = append(f.Violations, one.Violations...)
			if status, ok := one.Seen[s]; ok {
				f.Seen[s] = status
			}
		}
		changed := i%500 == 0 || i%700 == 0
		for _, s := range c.judge(f) {
			up := s.To > s.From || s.From == policy.Terminate && s.To == policy.Terminate
			switch {
			case up && (s.To > s.From+1 || s.To > c.steps.Mode || who[s.Subject] != 'x' || len(s.Evidence) == 0):
				t.Fatalf("seed %d, audit %d: %c: %+v", seed, i, who[s.Subject], s)
			case s.From == policy.Pause && s.To == policy.Throttle && c.steps.Mode == policy.Pause &&
				who[s.Subject] == 'x': // no change of level
			case !up && !changed && (s.Evidence != nil || !strings.ContainsRune(".g", who[s.Subject])):
				t.Fatalf("seed %d, audit %d: %c: %+v", seed, i, who[s.Subject], s)
			case up && s.To > policy.Warn && s.Result == Done:
				acted = append(acted, i)
			}
		}
		if n := len(acted); n > 5 && acted[n-1]-acted[n-6] < 600 {
			t.Fatalf("seed %d: six actions from audit %d to %d", seed, acted[n-6], acted[n-1])
		}
	}
	fixture.AtLeast(t, len(acted), 10, "only … actions: the test tests little")
}
