package quota

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// write returns the written terms of alternating keys and texts.
func write(t *testing.T, pairs ...string) (w Written) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		fixture.Must(t, w.Set(pairs[i], pairs[i+1]))
	}
	return w
}

// withTerm runs a test with one more term, which is only a row.
func withTerm(t *testing.T, extra *Term) {
	t.Helper()
	before := Terms
	Terms = append(Terms[:len(Terms):len(Terms)], extra)
	t.Cleanup(func() { Terms = before })
}

func TestTermIsARow(t *testing.T) { // not parallel: the table is everybody's
	withTerm(t, &Term{
		Key: "patience", At: func(q *Quota) Value { return &q.LaunchWait },
		Check: func(q Quota) string {
			if q.LaunchWait > Wait(time.Minute) {
				return "nobody has more than a minute"
			}
			return ""
		},
		Yield:  func(q Quota) Quota { q.LaunchWait = min(q.LaunchWait, Wait(10*time.Second)); return q },
		Says:   "patience of",
		Metric: Metric{Name: "nvgpu_quota_patience_seconds", Help: "How long it waits."},
	})
	var w Written
	fixture.Fails(t, w.Set("patience", "long"), `"long" is not a duration such as 10s, 1m or 24h`, "a text of another unit")
	w = write(t, "guarantee", "10 %", "patience", "90s")
	q := w.Over(Free())
	fixture.Fails(t, q.Check(), "patience: nobody has more than a minute", "it is checked")
	fixture.Equal(t, w.Over(Free()).Fit(w).LaunchWait, Wait(90*time.Second), "a written term gives way")
	q = w.Over(Free()).Fit(w).Fit(Written{})
	fixture.Equal(t, q.LaunchWait, Wait(10*time.Second), "a term that is not written does not give way")
	fixture.Contains(t, strings.Join(q.Explain(), ", "), "patience of 10s", "it is not explained")
	v, ok := Find("patience").Told(&q)
	fixture.If(t, v != 10 || !ok, "it is told as %v, %v", v, ok)
	none := Free()
	_, ok = Find("patience").Told(&none)
	fixture.If(t, ok, "it is told where nothing is written")
	err := w.Set("impatience", "1s")
	fixture.If(t, err == nil || !strings.HasSuffix(err.Error(), "bandwidth, patience"), "another key: %v", err)
}

// Each row writes its own field, and each field of a quota has a row.
func TestEveryFieldHasARow(t *testing.T) {
	texts := map[string]string{"a part such as 0.3 or 30 %": "30 %",
		"a size such as 4 GiB, 500 MiB or a number of bytes": "4 GiB",
		"a size such as 4 GiB, or a part such as 30 %":       "30 %", "a duration such as 10s, 1m or 24h": "10s"}
	written := map[string]string{}
	for _, term := range Terms {
		q := write(t, term.Key, texts[term.Form()]).Over(Quota{Memory: 1})
		fixture.Equal(t, term.Check == nil, false, "%s has no check", term.Key)
		fixture.Equal(t, term.Metric.Name != "", term.Metric.Help != "", "%s has half a metric", term.Key)
		if text := term.At(&q).String(); !strings.HasPrefix(text, strings.TrimSuffix(texts[term.Form()], " %")) {
			t.Errorf("%s is shown as %s", term.Key, text)
		}
		for i := range reflect.TypeFor[Quota]().NumField() {
			before := reflect.ValueOf(Quota{Memory: 1}).Field(i).Interface()
			if reflect.ValueOf(q).Field(i).Interface() != before {
				field := reflect.TypeFor[Quota]().Field(i).Name
				fixture.Equal(t, written[field], "", "… and %s both write %s", term.Key, field)
				written[field] = term.Key
			}
		}
	}
	fields := reflect.TypeFor[Quota]().NumField()
	fixture.If(t, len(written) != fields, "some of %d fields have no row; the rows are %v", fields, written)
}

func TestWrittenTermsTakePrecedence(t *testing.T) {
	base := Quota{Guarantee: .5, Limit: .8, Memory: 100, Reserved: 50, LaunchWait: 7, Bandwidth: 1}
	for name, c := range map[string]struct {
		written []string
		change  func(*Quota) // of base
	}{
		"nothing":              {nil, func(*Quota) {}},
		"the same twice":       {[]string{"limit", "1", "limit", ".6"}, func(q *Quota) { q.Limit = .6 }},
		"a limit below":        {[]string{"limit", ".3"}, func(q *Quota) { q.Guarantee, q.Limit = .3, .3 }},
		"no guarantee":         {[]string{"guarantee", "0"}, func(q *Quota) { q.Guarantee, q.LaunchWait = 0, 0 }},
		"a cap below":          {[]string{"memory", "20"}, func(q *Quota) { q.Memory, q.Reserved = 20, 20 }},
		"no cap":               {[]string{"memory", "0"}, func(q *Quota) { q.Memory = 0 }},
		"a part instead":       {[]string{"memory", "30 %"}, func(q *Quota) { q.Memory, q.MemoryPart = 0, .3 }},
		"a size, after a part": {[]string{"memory", "30 %", "memory", "60"}, func(q *Quota) { q.Memory = 60 }},
		"a wait, and bandwidth": {[]string{"launch_wait", "1s", "bandwidth", "60 %"},
			func(q *Quota) { q.LaunchWait, q.Bandwidth = Wait(time.Second), .6 }},
	} {
		w, want := write(t, c.written...), base
		c.change(&want)
		fixture.Equal(t, w.Over(base).Fit(w), want, "%s", name)
	}
}

// The broker may have another version: its JSON is a contract.
func TestJSON(t *testing.T) {
	q := Quota{Guarantee: .5, Limit: .8, Memory: 100, Reserved: 50, LaunchWait: Wait(20 * time.Millisecond), Bandwidth: .6}
	text := fixture.Value(json.Marshal(q))(t)
	for _, want := range []string{`"guarantee":0.5,`, `"limit":0.8,`, `"memory":100,`, `"memory_reserved":50,`,
		`"launch_wait":0.02,`, `"bandwidth":0.6`} {
		fixture.Contains(t, string(text), want, "the quota")
	}
	var back Quota
	err := json.Unmarshal(text, &back)
	fixture.If(t, err != nil || back != q, "%+v, %v; want %+v", back, err, q)
	fixture.Fails(t, json.Unmarshal([]byte(`{"launch_wait":"20ms"}`), &back), "", "a wait that is no number")
}

func TestSizesAndParts(t *testing.T) {
	for text, want := range map[string]Size{"0": 0, "4096": 4096, "4 GiB": 4 << 30, "4GiB": 4 << 30, "1.5 GiB": 3 << 29,
		"80 GB": 80e9, "512 MiB": 512 << 20, "7 B": 7} {
		var got Size
		err := got.UnmarshalText([]byte(text))
		fixture.If(t, err != nil || got != want, "%q is %d, %v; want %d", text, got, err, want)
	}
	for _, text := range []string{"", "GiB", "4 gib", "-1", "4 GiB 2", "1e30 GiB", "nan", "10000000000 GiB", "1.2.3"} {
		var got Size
		fixture.Fails(t, got.UnmarshalText([]byte(text)), "", "%q is a size", text)
	}
	for text, want := range map[string]Part{"0.3": .3, "30 %": .3, "30%": .3, "1": 1, "12.5 %": .125} {
		var got Part
		err := got.UnmarshalText([]byte(text))
		fixture.If(t, err != nil || got != want, "%q is %v, %v; want %v", text, got, err, want)
	}
	for _, text := range []string{"", "%", "a third", "30 % 1"} {
		var got Part
		fixture.Fails(t, got.UnmarshalText([]byte(text)), "", "%q is a part", text)
	}
}
