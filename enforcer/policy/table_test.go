package policy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gpusteward/collectors/host"
	"gpusteward/enforcer/broker"
	"gpusteward/internal/fixture"
)

// internal/config/testdata/invalid has what a file can get wrong; see refused_test.go.
func TestCheckNamesTheKeyAndTheFix(t *testing.T) {
	terms := func(change func(*Rule)) Table { return table(row("first"), with(row("a"), change)) }
	many := make([]Rule, mostTenants+1)
	for i := range many {
		many[i] = row(fmt.Sprint("t", i))
	}
	var users []string
	for i := range mostPatterns / 2 {
		users = append(users, fmt.Sprint(i))
	}
	for want, bad := range map[string]Table{
		"ladder.of: 0 is not":    {Default: anyone},
		"tenants: there are 257": table(many...),
		"tenants: their select lists have 4097 patterns": table(row("a", Selector{Users: users, Groups: users}),
			row("b", Selector{Users: []string{"5000"}})),
		"tenants[1].limit: NaN is not a part":             terms(func(r *Rule) { r.Limit = math.NaN() }),
		"tenants[1].guarantee: NaN is not a part":         terms(func(r *Rule) { r.Guarantee = math.NaN() }),
		"tenants[1].ladder.mode: 6 is not":                terms(func(r *Rule) { r.Steps.Mode = 6 }),
		`tenants[1].select[0].executables: "\xff" is not`: table(row("first"), row("a", Selector{Executables: []string{"\xff"}})),
	} {
		err := bad.Check()
		fixture.If(t, err == nil || !strings.HasPrefix(err.Error(), want), "%v; want %s", err, want)
	}
	good := table(row("team-a/b_c@d.1"), row(strings.Repeat("a", 63)),
		row("all", Selector{Units: []string{"a*"}, Slices: []string{"*"}, Workloads: []string{"unit:*"},
			Users: []string{"1"}, Groups: []string{"1"}, Executables: []string{"*"}},
			Selector{Pods: []string{"a*"}, Containers: []string{"x"}},
			Selector{SlurmUsers: []string{"a"}, SlurmAccounts: []string{"b"}}))
	fixture.Must(t, good.Check())
}

func TestMoreThanAGPUIsNotGuaranteed(t *testing.T) {
	half, none := .5, 0.
	on := func(name string, guarantee, there float64) Rule {
		return with(guaranteed(name, guarantee), func(r *Rule) {
			r.GPUs = []Override{{GPUs: []string{"0", "2"}, Written: written("guarantee", fmt.Sprint(there))}}
		})
	}
	realtime := with(row("urgent"), func(r *Rule) { r.Priority, r.Limit = PriorityRealtime, .4 })
	for want, rules := range map[string][]Rule{
		"tenants[1].guarantee: on every GPU the guarantees of a (60 %), b (50 %) add up to 110 %, more than 100 %: ": {
			guaranteed("a", .6), guaranteed("b", half), row("c"),
		},
		"tenants[1].guarantee: on every other GPU the guarantees of a (60 %), b (50 %) add up to ": {
			on("a", .6, none), guaranteed("b", half),
		},
		"tenants[1].guarantee: on GPU 0 the guarantees of a (60 %), b (50 %) add up to 110 %": {
			on("a", .1, .6), guaranteed("b", half),
		},
		"tenants[1].guarantee: on every GPU the guarantees of a (70 %), urgent (40 %, its limit, since it is " +
			"realtime) add up": {
			guaranteed("a", .7), realtime,
		},
	} {
		err := table(rules...).Check()
		fixture.If(t, err == nil || !strings.HasPrefix(err.Error(), want), "%v; want %s", err, want)
	}
	var tenths []Rule
	for i := range 10 {
		tenths = append(tenths, guaranteed(fmt.Sprint("t", i), .1))
	}
	for _, rules := range [][]Rule{tenths, {on("a", .6, none), on("b", none, .7)}, {guaranteed("a", .6), realtime}} {
		fixture.Must(t, table(rules...).Check())
	}
}

func TestTiesAreErrors(t *testing.T) {
	for name, c := range map[string]struct {
		a, b Selector
		want string // part of the example; empty: there is no tie
	}{
		"the same": {Selector{Units: []string{"a.service"}},
			Selector{Units: []string{"b.service", "a.service"}}, `units "a.service"`},
		"overlapping": {Selector{Units: []string{"a*.service"}},
			Selector{Units: []string{"*z.service"}}, `units "axz.service"`},
		"one is longer":      {Selector{Units: []string{"a*.service"}}, Selector{Units: []string{"ab*.service"}}, ""},
		"one is exact":       {Selector{Units: []string{"a*.service"}}, Selector{Units: []string{"ab.service"}}, ""},
		"apart":              {Selector{Units: []string{"a*.service"}}, Selector{Units: []string{"b*.service"}}, ""},
		"one has a key more": {Selector{Units: []string{"a*"}}, Selector{Units: []string{"a*"}, Users: []string{"1"}}, ""},
		"both keys": {Selector{Executables: []string{"/a"}, Users: []string{"1", "2"}},
			Selector{Users: []string{"2"}, Executables: []string{"/a"}}, `executables "/a", users 2`},
		"apart in one key": {Selector{Executables: []string{"/a"}, Users: []string{"1"}},
			Selector{Users: []string{"2"}, Executables: []string{"/a"}}, ""},
		"pods":                        {Selector{Pods: []string{"a/*"}}, Selector{Pods: []string{"*/b"}}, `pods "a/b"`},
		"pods, but for another slash": {Selector{Pods: []string{"*/a*"}}, Selector{Pods: []string{"*/b*"}}, ""},
		"pods, one without a slash":   {Selector{Pods: []string{"a*"}}, Selector{Pods: []string{"*/"}}, `pods "ax/"`},
		"the same group":              {Selector{Groups: []string{"1", "2"}}, Selector{Groups: []string{"3", "2"}}, "groups 2"},
		"groups":                      {Selector{Groups: []string{"1"}}, Selector{Groups: []string{"2"}}, ""},
		"the same unknown user": {Selector{Users: []string{"no-such-user"}},
			Selector{Users: []string{"no-such-user"}}, `users "no-such-user"`},
	} {
		err := table(row("first", c.a), row("second", c.b)).Check()
		if want := "tenants[1].select[0]: this and tenants[0].select[0] both fit a process of " + c.want +
			", for second and first, and"; c.want != "" &&
			(err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%s: %v; want %s", name, err, want)
		}
		fixture.If(t, c.want == "" && err != nil, "%s: %v", name, err)
	}
	fixture.Must(t, table(row("a", Selector{Users: []string{"1"}}, Selector{Users: []string{"1"}})).Check())
}

// In a table that Check accepts, a process has at most one most specific tenant, and a full search finds the same one.
// Additional groups of a process are the exception: the first match in the table wins.
func TestAtMostOneTenantWins(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	pick := func(all ...string) string { return all[random.IntN(len(all))] }
	names := func(all ...string) []string {
		list := []string{pick(all...), pick(all...), pick(all...)}[:1+random.IntN(3)]
		slices.Sort(list)
		return slices.Compact(list)
	}
	selector := func() (s Selector) {
		switch random.IntN(6) {
		case 0:
			s.Units = names("a*", "*b.service", "ab.service", "*.service", "a?.service", "a.service")
		case 1:
			s.Pods = names("n/*", "*/p", "n/p", "*", "m/?")
			if random.IntN(2) == 0 {
				s.Containers = names("c", "c*", "*")
			}
		case 2:
			s.Containers = names("c", "c*", "*c", "?")
		case 3:
			s.Workloads = names("unit:a*", "*", "pod:*", "user:1", "user:?")
		}
		if random.IntN(3) == 0 {
			s.Executables = names("/a", "/a*", "/*", "*a")
		}
		if random.IntN(3) == 0 {
			s.Users = names("1", "2", "3")
		}
		if random.IntN(3) == 0 {
			s.Groups = names("1", "2", "3", "4", "5")
		}
		return s
	}
	process := func() (broker.Facts, *host.Workload) {
		f := broker.Facts{UID: uint32(1 + random.IntN(4)), GID: uint32(1 + random.IntN(5)),
			Groups: []uint32{uint32(random.IntN(6)), uint32(random.IntN(6))}, Exe: pick("/a", "/aa", "/b", "")}
		w := &host.Workload{Kind: host.KindUser, Key: fmt.Sprint("user:", f.UID)}
		switch random.IntN(4) {
		case 0:
			w.Kind, w.Unit = host.KindUnit, pick("a", "ab", "b", "ac")+".service"
			w.Key = "unit:" + w.Unit
		case 1:
			w.Kind, w.Namespace, w.Pod, w.Container = host.KindPod, pick("n", "m"), pick("p", "pq"), pick("c", "cc")
			w.Key = "pod:" + w.Namespace + "/" + w.Pod + "/" + w.Container
		case 2:
			w.Kind, w.Container = host.KindContainer, pick("c", "cc", "d")
			w.Key = "container:" + w.Container
		}
		return f, w
	}
	accepted, governed := 0, 0
	for range 4000 {
		var rules []Rule
		for i := range 2 + random.IntN(3) {
			rules = append(rules, row(fmt.Sprint("t", i), selector()))
		}
		if table(rules...).Check() != nil {
			continue
		}
		accepted++
		p := New(table(rules...), HostView{}, nil)
		for range 50 {
			f, w := process()
			s := newSubject(f, w)
			want, top := DefaultTenant, specificity{}
			for i := range rules {
				c, ok := p.closest(i, &s)
				if !ok {
					continue
				}
				if over := c.rank.compare(top); over > 0 {
					want, top = rules[i].Name, c.rank
				} else if over == 0 && top[byGroup] != 1 {
					t.Fatalf("%+v of %s fits %s and %s equally, in %+v", f, w.Key, want, rules[i].Name, rules)
				}
			}
			fixture.Need(t, p.Whose(f, w), want, "%+v of %s is of …, in %+v", f, w.Key, rules)
			if want != DefaultTenant {
				governed++
			}
		}
	}
	fixture.If(t, accepted < 200 || governed < 2000,
		"only %d tables were good, and %d processes were somebody's", accepted, governed)
}

func TestNamesOfPrioritiesAndLevels(t *testing.T) {
	for i, name := range priorities {
		var p Priority
		err := p.UnmarshalText([]byte(name))
		fixture.If(t, err != nil || p != Priority(i) || p.String() != name, "%s is %v, %v", name, p, err)
	}
	for i, name := range Levels {
		var r Level
		err := r.UnmarshalText([]byte(name))
		fixture.If(t, err != nil || r != Level(i) || r.String() != name, "%s is %v, %v", name, r, err)
	}
	if new(Priority).UnmarshalText([]byte("urgent")) == nil || new(Level).UnmarshalText([]byte("kill")) == nil {
		t.Error("a name that there is not is taken")
	}
}
