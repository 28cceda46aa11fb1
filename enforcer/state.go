package enforcer

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/suspend"
)

// saved is the state that outlives a restart.
type saved struct {
	Escalation escalation.State `json:"ladder"`
	Paused     []action.Paused  `json:"paused,omitempty"`
	Suspended  []suspend.Record `json:"suspended,omitempty"`
}

// A sealed is the written form: a checksum exposes a bad disk, and a file that
// somebody edited.
type sealed struct {
	Checksum uint32          `json:"checksum"` // CRC-32 of State as written
	State    json.RawMessage `json:"state"`
}

// seal returns the written form of s.
func (s saved) seal() ([]byte, error) {
	state, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return json.Marshal(sealed{crc32.ChecksumIEEE(state), state})
}

// unsealed reverses seal.
func unsealed(text []byte) (s saved, err error) {
	var from sealed
	if err := json.Unmarshal(text, &from); err != nil {
		return s, err
	}
	if from.State == nil || crc32.ChecksumIEEE(from.State) != from.Checksum {
		return s, errors.New("its checksum does not match its content")
	}
	return s, json.Unmarshal(from.State, &s)
}

// restore takes over the state of an earlier enforcer. A workload that it
// paused and that should not be paused goes on.
func (e *Enforcer) restore() {
	var s saved
	found, err := e.file.Read(func(text []byte) (err error) { s, err = unsealed(text); return err })
	if err != nil {
		e.log.Error("the escalated workloads are forgotten, and paused and suspended processes stay so: the file names them",
			"file", e.StateFile, "aside", e.StateFile+".bad", "err", err)
	}
	if !found {
		return
	}
	e.escalation.Restore(time.Now(), s.Escalation)
	e.actor.Restore(s.Paused)
	e.swap.Restore(time.Now(), s.Suspended)
	for _, p := range s.Paused {
		subject := audit.Subject{Tenant: p.Tenant, Workload: p.Workload}
		if !e.stopped(subject) || e.terms.Load().steps(p.Tenant).Mode < policy.Pause {
			_, detail := e.actor.Resume(action.ProcessGroup{Subject: subject})
			e.log.Info("a paused workload was resumed", "tenant", p.Tenant, "workload", p.Workload, "detail", detail)
		}
	}
}

// keep writes the state before the actor pauses a workload: it does not pause
// what it could not remember.
func (e *Enforcer) keep(paused []action.Paused) error {
	return e.write(saved{e.escalation.Save(), paused, e.swap.Suspender.Records()})
}

// keepSuspended does so before a workload is suspended or resumed.
func (e *Enforcer) keepSuspended(all []suspend.Record) error {
	return e.write(saved{e.escalation.Save(), e.actor.Paused(), all})
}

func (e *Enforcer) write(s saved) error {
	if e.StateFile == "" {
		return nil // and nothing is encoded
	}
	text, err := s.seal()
	if err == nil {
		err = e.file.Write(text)
	}
	if err != nil {
		return fmt.Errorf("save the record of paused and suspended workloads: %w", err)
	}
	return nil
}

// save writes the state if it changed.
func (e *Enforcer) save() {
	err := e.keep(e.actor.Paused())
	switch {
	case err != nil && !e.unsaved:
		e.log.Error("the escalation's state cannot be saved: a restart would forget it, and the freezer and signals "+
			"pause nothing meanwhile", "err", err)
	case err == nil && e.unsaved:
		e.log.Info("the escalation's state is saved again")
	}
	e.unsaved = err != nil
}
