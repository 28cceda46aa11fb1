package health

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

type remembered struct {
	Latched []incident.Entity
	Count   int
}

// TestKeysStay holds the keys of the state and of the events in it: the next version reads what this one wrote, and
// other programs read the events. A key that changes needs another savedVersion or incident.EventVersion.
func TestKeysStay(t *testing.T) {
	var all []string
	var add func(of reflect.Type, at string)
	add = func(of reflect.Type, at string) {
		switch of.Kind() {
		case reflect.Slice, reflect.Map, reflect.Pointer:
			add(of.Elem(), at)
		case reflect.Struct:
			for f := range of.Fields() {
				if key, _, _ := strings.Cut(f.Tag.Get("json"), ","); f.Anonymous {
					add(f.Type, at)
				} else if key != "" {
					all = append(all, at+key)
					add(f.Type, at+key+".")
				}
			}
		}
	}
	add(reflect.TypeFor[kept](), "")
	fixture.Golden(t, "testdata/keys.txt", strings.Join(all, "\n")+"\n")
}

func TestStateSurvivesARestart(t *testing.T) {
	t.Parallel()
	s := Store{Dir: filepath.Join(t.TempDir(), "made")}
	got := remembered{Count: 7}
	err := s.Load(&got)
	fixture.If(t, err != nil || got.Count != 7, "where nothing was kept: %+v, %v; want it as it was", got, err)
	want := remembered{[]incident.Entity{{GPU: "3", UUID: "GPU-x"}}, 2}
	for range 2 {
		fixture.Must(t, s.Save(want))
	}
	if err := s.Load(&got); err != nil || got.Count != 2 || len(got.Latched) != 1 ||
		got.Latched[0] != want.Latched[0] {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	fixture.If(t, s.Save(func() {}) == nil, "a function is kept as JSON")
	fixture.Fails(t, s.Save(make([]byte, maxStored)), "16777216", "more than is read back")
	err = s.Load(&got)
	fixture.If(t, err != nil || got.Count != 2, "after failures: %+v, %v; want what was kept before", got, err)
	fixture.Must(t, (&Store{}).Save(want))
}

func TestUnusableStateIsMovedAside(t *testing.T) {
	t.Parallel()
	for name, text := range map[string][]byte{
		"empty":     nil,
		"cut":       []byte(`{"version":1,"state":{"Count":2`),
		"nul":       make([]byte, 512),
		"newer":     []byte(`{"version":2,"state":{"Count":2}}`),
		"type":      []byte(`{"version":1,"state":{"Count":"two","Latched":[{}]}}`),
		"partly":    []byte(`{"version":1,"state":{"Latched":[{}],"Count":[]}}`),
		"oversized": bytes.Repeat([]byte(" "), maxStored+1),
		"stateless": []byte(`{"version":1}`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Store{Dir: t.TempDir()}
			fixture.Must(t, os.WriteFile(s.path(), text, 0o600))
			got := remembered{Count: 7}
			reader := Store{Dir: s.Dir, ReadOnly: true}
			err := reader.Load(&got)
			fixture.If(t, err == nil || strings.Contains(err.Error(), ".bad"), "of one who only reads: %v", err)
			fixture.Must(t, reader.Save(got))
			if all, err := os.ReadDir(s.Dir); err != nil || len(all) != 1 || all[0].Name() != "health.json" {
				t.Errorf("one who only reads left %v, %v", all, err)
			}
			if err := s.Load(&got); err == nil || !strings.Contains(err.Error(), "health.json.bad") ||
				got.Count != 7 || got.Latched != nil {
				t.Errorf("%+v, %v; want it untouched and where the file goes", got, err)
			}
			fixture.Must(t, s.Save(got))
			if moved, err := os.ReadFile(s.path() + ".bad"); err != nil || !bytes.Equal(moved, text) {
				t.Errorf("moved aside: %d bytes, %v; want the %d that there were", len(moved), err, len(text))
			}
			err = s.Load(&got)
			fixture.If(t, err != nil, "at the next start: %v", err)
		})
	}
}

// TestUnreadableStateIsAnError puts a directory in place of the state, and a file in place of its
// directory: the agent reports it, whether it saves its state or loads it.
func TestUnreadableStateIsAnError(t *testing.T) {
	got, file := remembered{Count: 7}, filepath.Join(t.TempDir(), "file")
	fixture.Must(t, os.WriteFile(file, nil, 0o600))
	s := Store{Dir: filepath.Join(file, "state")}
	fixture.If(t, s.Save(got) == nil, "the state is kept in no directory")
	at := Store{Dir: t.TempDir()}
	fixture.Must(t, os.Mkdir(at.path(), 0o700))
	for _, s := range []*Store{&s, &at} {
		err := s.Load(&got)
		fixture.If(t, err == nil || got.Count != 7, "%+v, %v", got, err)
	}
}
