package response

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"

	"gpusteward/collectors/host"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/suspend"
)

// A stateFile has the state that outlives a restart. Run's goroutine owns it.
type stateFile struct {
	host.StateFile // without a path: there is none
	log            *slog.Logger
	unsaved        bool // the last write failed, and that was logged
}

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

// read returns the state of an earlier enforcer, and whether there is one.
func (f *stateFile) read() (s saved, found bool) {
	found, err := f.Read(func(text []byte) (err error) { s, err = unsealed(text); return err })
	if err != nil {
		f.log.Error("the escalated workloads are forgotten, and paused and suspended processes stay so: the file names them",
			"file", f.Path, "aside", f.Path+".bad", "err", err)
	}
	return s, found
}

// write writes the state if it changed.
func (f *stateFile) write(s saved) error {
	if f.Path == "" {
		return nil // and nothing is encoded
	}
	text, err := s.seal()
	if err == nil {
		err = f.Write(text)
	}
	if err != nil {
		return fmt.Errorf("save the record of paused and suspended workloads: %w", err)
	}
	return nil
}

// save writes it too, and logs whether that fails.
func (f *stateFile) save(s saved) {
	err := f.write(s)
	switch {
	case err != nil && !f.unsaved:
		f.log.Error("the escalation's state cannot be saved: a restart would forget it, and the freezer and signals "+
			"pause nothing meanwhile", "err", err)
	case err == nil && f.unsaved:
		f.log.Info("the escalation's state is saved again")
	}
	f.unsaved = err != nil
}
