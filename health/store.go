package health

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"

	"gpusteward/collectors/host"
)

// storeVersion is the version of the file's form.
const storeVersion = 1

// maxStored bounds the file, in bytes: its content must fit in an agent's memory.
const maxStored = host.MostState

// A Store keeps the state over restarts, as JSON in health.json. Its methods
// belong to one goroutine.
type Store struct {
	Dir      string // created if it is missing; empty: nothing is kept
	ReadOnly bool   // nothing is written, and an invalid file stays in place

	file host.StateFile
}

type stored struct {
	Version int             `json:"version"`
	State   json.RawMessage `json:"state"`
}

// Save stores v, completely or not at all.
func (s *Store) Save(v any) error {
	if s.Dir == "" || s.ReadOnly {
		return nil
	}
	text, err := json.Marshal(map[string]any{"version": storeVersion, "state": v})
	if err != nil {
		return fmt.Errorf("encode the state: %w", err)
	}
	if len(text) > maxStored {
		return fmt.Errorf("keep the state: its %d bytes are more than the %d that are read back", len(text), maxStored)
	}
	s.file.Path = s.path()
	return s.file.Write(text)
}

// Load sets v, a pointer, to what was stored. If there is nothing, or after an
// error, v keeps its value.
func (s *Store) Load(v any) error {
	if s.Dir == "" {
		return nil
	}
	s.file.Path = s.path()
	fresh := reflect.New(reflect.TypeOf(v).Elem()) // a partial state is worse than none
	found, err := s.file.Read(func(text []byte) error { return decodeStored(text, fresh.Interface()) })
	switch {
	case err != nil && s.ReadOnly:
		return fmt.Errorf("state health cannot be used: %w", err)
	case err != nil:
		return fmt.Errorf("state health cannot be used, moved to %s.bad before the next write: %w", s.file.Path, err)
	case found:
		reflect.ValueOf(v).Elem().Set(fresh.Elem())
	}
	return nil
}

func decodeStored(text []byte, v any) error {
	var s stored
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	if s.Version != storeVersion {
		return fmt.Errorf("its version is %d, and this agent's is %d", s.Version, storeVersion)
	}
	return json.Unmarshal(s.State, v)
}

func (s *Store) path() string { return filepath.Join(s.Dir, "health.json") }
