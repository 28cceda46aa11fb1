package response

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"gpusteward/enforcer/action"
	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/swap"
	"gpusteward/internal/fixture"
)

// stateful returns a response that has only a state file, and its log.
func stateful(file string) (*Response, *bytes.Buffer) {
	text := new(bytes.Buffer)
	log := slog.New(slog.NewTextHandler(text, nil))
	e := New(Options{Log: log, StateFile: file, Terms: NewTerms(new(policy.Policy), nil, false, nil)})
	e.Swap = swap.New(swap.Options{})
	return e, text
}

// TestWhatCannotBeRememberedIsNotDone holds that Keep, which precedes each pause, fails while the state cannot be
// written, and works again afterwards. (Package action tests the effect on a pause.)
func TestWhatCannotBeRememberedIsNotDone(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	fixture.Must(t, os.WriteFile(dir, nil, 0o600)) // not a directory
	e, log := stateful(filepath.Join(dir, "enforcer.json"))
	someone := []action.Paused{{Tenant: "a", Workload: "unit:a.service", Stopped: []action.Target{{PID: 7, Start: 8}}}}
	for range 2 {
		fixture.Fails(t, e.keep(someone), "save the record of paused and suspended", "to keep it")
		e.state.save(e.saved())
	}
	fixture.Equal(t, strings.Count(log.String(), "the freezer and signals pause nothing meanwhile"), 1,
		"told … times: %s", log)
	fixture.Must(t, os.Remove(dir))
	e.state.save(e.saved())
	err := e.keep(someone)
	fixture.If(t, err != nil || !strings.Contains(log.String(), "saved again"), "%v, %s", err, log)
	text, err := os.ReadFile(e.state.Path)
	fixture.If(t, err != nil || !strings.Contains(string(text), "unit:a.service"), "%s, %v", text, err)
}

func TestAStateThatCannotBeUsedIsSetAside(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{"cut": `{"ladder": {"standing": [`, "another": `[3]`, "empty": "",
		"null": "null", "nothing in it": "{}", "without a checksum": `{"ladder":{}}`} {
		e, log := stateful(filepath.Join(t.TempDir(), "enforcer.json"))
		fixture.Must(t, os.WriteFile(e.state.Path, []byte(text), 0o600))
		e.Restore()
		fixture.Contains(t, log.String(), e.state.Path+".bad", "%s: the log", name)
		for range 2 {
			fixture.Must(t, e.keep([]action.Paused{{Tenant: name}}))
		}
		fixture.Equal(t, string(fixture.Value(os.ReadFile(e.state.Path+".bad"))(t)), text, "%s: set aside", name)
		again, log := stateful(e.state.Path)
		if again.Restore(); log.Len() > 0 && strings.Contains(log.String(), "forgotten") {
			t.Errorf("%s: what was written then: %s", name, log)
		}
	}
}

// TestAStateWithAFlippedBitIsNotBelieved flips each bit of a state file. The
// enforcer then loads the written state, or nothing.
func TestAStateWithAFlippedBitIsNotBelieved(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "enforcer.json")
	e, _ := stateful(file)
	fixture.Must(t, e.keep([]action.Paused{{Tenant: "a", Workload: "unit:a.service",
		Stopped: []action.Target{{PID: 7000, Start: 8}}}}))
	text := fixture.Value(os.ReadFile(file))(t)
	good := fixture.Value(unsealed(text))(t)
	for bit := range 8 * len(text) {
		flipped := bytes.Clone(text)
		flipped[bit/8] ^= 1 << (bit % 8)
		s, err := unsealed(flipped)
		fixture.If(t, err == nil && !reflect.DeepEqual(s, good), "of %s it takes %+v", flipped, s)
	}
}
