package config

import (
	"cmp"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	_ "gpusteward/collectors/all"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
)

const reference = "../../deploy/gpusteward.yml"

// problems returns the errors of a file, none if it is good.
func problems(path string) string {
	if _, err := Load(path); err != nil {
		return err.Error()
	}
	return ""
}

func TestAcceptsAGoodFile(t *testing.T) {
	t.Parallel()
	for _, path := range []string{reference, "testdata/quick.yml", fixture.Config(t, ""), fixture.Config(t, "# nothing\n"),
		fixture.Config(t, "collectors:\n")} {
		fixture.Must(t, fixture.Error(Load(path)))
	}
}

// Some files have several errors, and one look finds them all.
func TestRefusesWithFileLineAndKey(t *testing.T) {
	t.Parallel()
	fixture.Refused(t, "testdata/invalid/*.yml", func(path string) error { return fixture.Error(Load(path)) })
}

// TestAnotherRootAsksNoNCCL: what listens at localhost is not of the host that a test made up.
func TestAnotherRootAsksNoNCCL(t *testing.T) {
	t.Parallel()
	for root, want := range map[string]string{"": "localhost:28028", "/": "localhost:28028", t.TempDir(): ""} {
		conf := &File{Root: root, Path: fixture.Config(t, "enforcer: {enabled: true}\n"), Log: slog.New(slog.DiscardHandler)}
		fixture.Equal(t, fixture.Value(conf.Load())(t).Enforcer.NCCL, want, "root %q: NCCL is asked at", root)
	}
}

func TestReferenceConfigIsTheDefaults(t *testing.T) {
	t.Parallel()
	c := fixture.Value(Load(reference))(t)
	text := func(c Config) string {
		return string(fixture.Value(yaml.Marshal(c))(t))
	}
	got, want := text(c), text(Defaults())
	fixture.If(t, got != want, "%s:\n%s\nthe defaults:\n%s", reference, got, want)
}

func TestReferenceConfigExplainsEveryKey(t *testing.T) {
	source := fixture.Value(os.ReadFile(reference))(t)
	var root yaml.Node
	fixture.Must(t, yaml.Unmarshal(source, &root))
	explained(t, reflect.TypeFor[Config](), root.Content[0], "")
}

// explained checks that a mapping has every key of a type, each under a comment.
// The comment of a setting has its default.
func explained(t *testing.T, typ reflect.Type, n *yaml.Node, path string) {
	t.Helper()
	nodes := map[string][2]*yaml.Node{}
	for i := 0; i < len(n.Content); i += 2 {
		nodes[n.Content[i].Value] = [2]*yaml.Node{n.Content[i], n.Content[i+1]}
	}
	for i := range typ.NumField() {
		name, option, _ := strings.Cut(typ.Field(i).Tag.Get("yaml"), ",")
		if option == olderName {
			continue
		}
		node, ok := nodes[name]
		switch {
		case !ok:
			t.Errorf("%s lacks the key %s%s: add it with its default", reference, path, name)
			continue
		case node[0].HeadComment == "":
			t.Errorf("%s: %s%s has no comment above it", reference, path, name)
		}
		if typ.Field(i).Type.Kind() == reflect.Struct {
			explained(t, typ.Field(i).Type, node[1], path+name+".")
			continue
		}
		values := []string{node[1].Value}
		if len(node[1].Content) > 0 {
			values = nil
		}
		for _, element := range node[1].Content {
			values = append(values, element.Value)
		}
		value := cmp.Or(strings.Join(values, ", "), "none")
		want := "Default: " + value + "."
		fixture.Contains(t, strings.ReplaceAll(node[0].HeadComment, "\n# ", " "), want,
			"%s: the comment of %s%s", reference, path, name)
	}
}

// TestOlderFilesAreTaken loads files with keys that have no effect any more or
// another name. The log says so, and the file is in force.
func TestOlderFilesAreTaken(t *testing.T) {
	t.Parallel()
	const without, renamed = " no longer has an effect: ", "health.page is the older name of health.enable_alerts: rename it"
	for text, want := range map[string]string{"": "", "web: {max_scrapes: 1}\n": "web.max_scrapes" + without,
		"enforcer: {default: {reclaim: {do: suspend}}}\n":                       "reclaim.do" + without,
		"enforcer: {tenants: [{name: a, reclaim: {idle: 10m, do: suspend}}]}\n": "reclaim.do" + without,
		"workloads: {kubelet: /var/lib/kubelet/pod-resources/kubelet.sock}\n":   "",
		"enforcer: {mps: true}\n":                                               "enforcer.mps is the older name of enforcer.sharing", "enforcer: {sharing: concurrent}\n": "",
		"health: {enable_alerts: [slow_gpu]}\n": "", "health: {page: [slow_gpu]}\n": renamed} {
		var log strings.Builder
		conf := &File{Path: fixture.Config(t, text), Log: slog.New(slog.NewTextHandler(&log, nil))}
		c, err := conf.Load()
		if err != nil || !strings.Contains(log.String(), want) || want == "" && log.Len() > 0 {
			t.Errorf("%q: %v, logged %q, want %q", text, err, log.String(), want)
		}
		fixture.Equal(t, c.Workloads, Defaults().Workloads, "%q", text)
		fixture.Equal(t, c.Enforcer.Concurrent(), strings.Contains(text, "mps: true") || strings.Contains(text, "concurrent"),
			"%q: programs run at once:", text)
		enabled := slices.Contains(c.Health.Settings().EnableAlerts, "slow_gpu")
		fixture.Equal(t, enabled, strings.Contains(text, "slow_gpu"), "%q: slow_gpu alerts", text)
	}
}

func TestMissingConfigFileIsAnError(t *testing.T) {
	t.Parallel()
	path := fixture.Config(t, "")
	conf := &File{Path: path}
	fixture.Must(t, fixture.Error(conf.Load()))
	os.Remove(path)
	_, err := conf.Load()
	fixture.If(t, err == nil || conf.Samples()[0].Value != 0, "loaded %s, which is gone: %v", path, err)
	conf.Optional = true // the default path
	fixture.Equal(t, fixture.Value(conf.Load())(t).Collectors.Fast, Defaults().Collectors.Fast,
		"no file at the default path")
}

// FuzzConfig: any text is either a valid configuration or an error that names the file, and never a panic.
func FuzzConfig(f *testing.F) {
	for _, path := range []string{reference, "testdata/invalid/every_problem.yml",
		"testdata/invalid/two_documents.yml"} {
		text := fixture.Value(os.ReadFile(path))(f)
		f.Add(text)
	}
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("collectors: &c {fast: 1s, <<: *c}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "f.yml")
		fixture.Rewrite(t, path, string(text))
		c, err := Load(path)
		if err == nil {
			err = c.validate()
		} else if strings.HasPrefix(err.Error(), path+":") {
			return
		}
		fixture.If(t, err != nil, "%q: %v", text, err)
	})
}

// The example of a tenant in the reference is valid once it is uncommented.
func TestReferenceConfigHasAGoodExample(t *testing.T) {
	source := fixture.Value(os.ReadFile(reference))(t)
	_, example, found := strings.Cut(string(source), "  #   - name: serving\n")
	example, _, _ = strings.Cut(example, "  # Unit: ")
	fixture.Need(t, found, true, "there is no example")
	c, err := Load(fixture.Config(t, "enforcer:\n  tenants:\n    - name: serving\n"+strings.ReplaceAll("\n"+example,
		"\n  # ", "\n  ")[1:]))
	fixture.Must(t, err)
	rules := c.Enforcer.Table(nil).Rules
	var there quota.Written
	fixture.Must(t, errors.Join(there.Set("guarantee", "0 %"), there.Set("memory", "10 GiB")))
	steps := TenantEscalation{}.steps(Defaults().Enforcer.Escalation)
	steps.Mode, steps.Shadow = policy.Throttle, false
	want := policy.Rule{
		Name: "serving", Select: []policy.Selector{{Units: []string{"triton*.service"}}, {Pods: []string{"inference/*"}}},
		Terms: policy.Terms{Priority: policy.PriorityHigh, Quota: policy.Quota{Guarantee: .5, Limit: .8,
			Memory: 40 << 30, Reserved: 20 << 30,
			LaunchWait: quota.Wait(20 * time.Millisecond), Bandwidth: .6}},
		Steps: steps,
		GPUs:  []policy.Override{{GPUs: []string{"0", "3"}, Written: there}},
	}
	fixture.If(t, len(rules) != 3 || !reflect.DeepEqual(rules[0], want) || rules[2].Priority != policy.PriorityIdle ||
		rules[1].Priority != policy.PriorityNormal || rules[1].Steps.Confirm != 3,
		"the tenants are\n%+v\nwant first\n%+v", rules, want)
}

// A term needs only its row, and no code in this package.
func TestTermIsAKey(t *testing.T) { // not parallel: the table is everybody's
	before := quota.Terms
	defer func() { quota.Terms = before }()
	quota.Terms = slices.Concat(before, []*quota.Term{{
		Key: "patience", At: func(q *quota.Quota) quota.Value { return &q.LaunchWait },
		Check: func(q quota.Quota) string {
			if q.LaunchWait > quota.Wait(time.Minute) {
				return "nobody has more than a minute"
			}
			return ""
		},
		Says: "patience of",
	}})
	tenant := func(terms string) string {
		return fixture.Config(t, "enforcer:\n  tenants:\n    - name: a\n      guarantee: 10 %\n      "+terms+"\n")
	}
	for terms, want := range map[string]string{
		"patience: 90s":                        ":5: enforcer.tenants[0].patience: nobody has more than a minute",
		"patience: long":                       `:5: enforcer.tenants[0].patience: "long" is not a duration such as 10s, 1m or 24h`,
		"patience: [1s]":                       ":5: enforcer.tenants[0].patience: want a duration such as 10s, 1m or 24h, not a list",
		"gpus: [{gpu: ['0'], patience: 90s}]":  ":5: enforcer.tenants[0].gpus[0].patience: nobody has more than a minute",
		"hurry: 1s":                            `:5: unknown key "hurry"; choose from name, select, binding, ` + "priority, guarantee,",
		"gpus: [{gpu: ['0'], impatience: 1s}]": "(did you mean patience?)",
		"limit: 90 %\n      limit: 80 %":       `:6: enforcer.tenants[0].limit: mapping key "limit" already defined`,
	} {
		fixture.Contains(t, problems(tenant(terms)), want, "%s", terms)
	}
	c := fixture.Value(Load(tenant("patience: 7s\n      launch_wait:\n      gpus: [{gpu: ['0'], patience: 9s}]")))(t)
	p := policy.New(c.Enforcer.Table(nil), policy.HostView{}, nil)
	for gpu, want := range map[string]time.Duration{"": 7 * time.Second, "0": 9 * time.Second} {
		q := p.Quota("a", gpu)
		fixture.If(t, q.LaunchWait != quota.Wait(want), "on GPU %q: %v, want %v", gpu, q.LaunchWait, want)
	}
	c.Enforcer.Tenants[0].Select = []Selector{{Users: []string{"4000000000"}}}
	var text strings.Builder
	policy.New(c.Enforcer.Table(nil), policy.HostView{}, nil).
		Explain(&text, broker.Facts{PID: 1, UID: 4000000000}, &host.Workload{})
	if !strings.Contains(text.String(), "patience of 7s") || !strings.Contains(text.String(), "patience of 9s") {
		t.Errorf("it is not explained:\n%s", &text)
	}
}

func TestEveryTermIsDocumented(t *testing.T) {
	for path, form := range map[string]string{reference: `(?m)^  #   (\w+, )*%s(, \w+)*: `,
		"../../docs/enforcement.md": "(?m)^\\| `%s` \\| "} {
		text := fixture.Value(os.ReadFile(path))(t)
		for _, key := range quota.Keys() {
			fixture.If(t, !regexp.MustCompile(strings.Replace(form, "%s", key, 1)).Match(text),
				"%s does not explain the term %s", path, key)
		}
	}
}
