package enforcer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/ladder"
	"gpusteward/enforcer/policy"
)

// saved is what outlives a restart.
type saved struct {
	Ladder ladder.State    `json:"ladder"`
	Paused []action.Paused `json:"paused,omitempty"`
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
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		e.spoiled = true
		e.log.Error("who was on the ladder is forgotten, and whoever was paused stays so: the file names them", "file", e.StateFile, "aside", e.StateFile+".bad", "err", host.Explain(err, host.Reads))
		return
	}
	e.written = text
	e.ladder.Restore(time.Now(), s.Ladder)
	e.actor.Restore(s.Paused)
	for _, p := range s.Paused {
		subject := audit.Subject{Tenant: p.Tenant, Workload: p.Workload}
		if rung, shadow := e.ladder.Rung(subject); rung != policy.Pause || shadow || e.steps(p.Tenant).Mode < policy.Pause {
			_, detail := e.actor.Resume(action.Crew{Subject: subject})
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
	text, err := json.Marshal(saved{e.ladder.Save(), paused})
	if err != nil || bytes.Equal(text, e.written) {
		return err
	}
	if e.spoiled {
		if err := collectors.SetAside(e.StateFile); err != nil {
			return fmt.Errorf("keep who is paused: %w", err)
		}
		e.spoiled = false
	}
	if err := collectors.ReplaceFile(e.StateFile, collectors.StateMode, func(w io.Writer) error { _, err := w.Write(text); return err }); err != nil {
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
		e.log.Error("the ladder's state will not outlive a restart: nobody is paused by the freezer or signals until it can be kept", "err", err)
	case err == nil && e.unsaved:
		e.log.Info("the ladder's state is kept again")
	}
	e.unsaved = err != nil
}
