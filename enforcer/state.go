package enforcer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/policy"
)

// saved is what outlives a restart.
type saved struct {
	Escalation escalation.State `json:"ladder"`
	Paused     []action.Paused  `json:"paused,omitempty"`
}

// A sealed is how it is written: a disk that lost a bit, and a hand that wrote
// what it took for a state, are not believed.
type sealed struct {
	Checksum uint32          `json:"checksum"` // CRC-32 of State as it stands there
	State    json.RawMessage `json:"state"`
}

// seal returns s as it is written.
func (s saved) seal() ([]byte, error) {
	state, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return json.Marshal(sealed{crc32.ChecksumIEEE(state), state})
}

// unsealed returns what seal wrote.
func unsealed(text []byte) (s saved, err error) {
	var from sealed
	if err := json.Unmarshal(text, &from); err != nil {
		return s, err
	}
	if from.State == nil || crc32.ChecksumIEEE(from.State) != from.Checksum {
		return s, errors.New("its checksum is of another state")
	}
	return s, json.Unmarshal(from.State, &s)
}

// restore takes up what an enforcer before this one left. Whom it paused and
// who is not to be, goes on.
func (e *Enforcer) restore() {
	if e.StateFile == "" {
		return
	}
	text, err := os.ReadFile(e.StateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var s saved
	if err == nil {
		s, err = unsealed(text)
	}
	if err != nil {
		e.spoiled = true
		e.log.Error("the escalated workloads are forgotten, and whoever was paused stays so: the file names them", "file", e.StateFile, "aside", e.StateFile+".bad", "err", host.Explain(err, host.Reads))
		return
	}
	e.written = text
	e.escalation.Restore(time.Now(), s.Escalation)
	e.actor.Restore(s.Paused)
	for _, p := range s.Paused {
		subject := audit.Subject{Tenant: p.Tenant, Workload: p.Workload}
		if level, shadow := e.escalation.Level(subject); level != policy.Pause || shadow || e.steps(p.Tenant).Mode < policy.Pause {
			_, detail := e.actor.Resume(action.ProcessGroup{Subject: subject})
			e.log.Info("who was paused goes on", "tenant", p.Tenant, "workload", p.Workload, "detail", detail)
		}
	}
}

// keep writes what outlives a restart, before the actor pauses somebody: whom
// it cannot remember, it does not pause.
func (e *Enforcer) keep(paused []action.Paused) error {
	if e.StateFile == "" {
		return nil
	}
	text, err := saved{e.escalation.Save(), paused}.seal()
	if err != nil || bytes.Equal(text, e.written) {
		return err
	}
	if e.spoiled {
		if err := host.SetAside(e.StateFile); err != nil {
			return fmt.Errorf("keep who is paused: %w", err)
		}
		e.spoiled = false
	}
	if err := host.ReplaceFile(e.StateFile, host.StateMode, func(w io.Writer) error { _, err := w.Write(text); return err }); err != nil {
		return fmt.Errorf("keep who is paused: %w", err)
	}
	e.written = text
	return nil
}

// save keeps what changed.
func (e *Enforcer) save() {
	err := e.keep(e.actor.Paused())
	switch {
	case err != nil && !e.unsaved:
		e.log.Error("the escalation's state will not outlive a restart: nobody is paused by the freezer or signals until it can be kept", "err", err)
	case err == nil && e.unsaved:
		e.log.Info("the escalation's state is kept again")
	}
	e.unsaved = err != nil
}
