package main

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"gpusteward/enforcer/gemini"
)

// GeminiConfig is one GPU that programs under Gemini's hook share. What is
// left out is the default that gemini.Options says.
type GeminiConfig struct {
	Role    gemini.Role    `yaml:"role"`
	Listen  string         `yaml:"listen"`
	File    string         `yaml:"file"`
	Unknown gemini.Unknown `yaml:"unknown"`
	Turn    time.Duration  `yaml:"turn"`
}

func (c GeminiConfig) options() gemini.Options {
	return gemini.Options{Role: c.Role, Listen: c.Listen, File: c.File, Unknown: c.Unknown, Turn: c.Turn}
}

func checkGemini(list []GeminiConfig) error {
	at := map[string]int{}
	for i, c := range list {
		o := c.options()
		if err := o.Check(); err != nil {
			return fmt.Errorf("enforcer.gemini[%d].%w", i, err)
		}
		if before, taken := at[o.Listen]; taken {
			return fmt.Errorf("enforcer.gemini[%d].listen: %s is gemini[%d]'s too", i, o.Listen, before)
		}
		at[o.Listen] = i
	}
	return nil
}

// newGemini returns a server for each entry, listening already.
func newGemini(f flags, list []GeminiConfig, log *slog.Logger) (servers gemini.Servers, err error) {
	for i, c := range list {
		o := c.options()
		o.ProcFS, o.CgroupFS, o.Logger = f.procfs, filepath.Join(f.sysfs, "fs/cgroup"), log.With("gemini", i)
		s, err := gemini.New(o)
		if err != nil {
			return nil, fmt.Errorf("gemini[%d]: %w", i, err)
		}
		servers = append(servers, s)
	}
	return servers, nil
}
