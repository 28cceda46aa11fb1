package config

import (
	"fmt"
	"time"

	"gpusteward/enforcer/gemini"
)

// Gemini is one GPU that programs under Gemini's hook share. A missing key has
// the default of gemini.Options.
type Gemini struct {
	Role    gemini.Role    `yaml:"role"`
	Listen  string         `yaml:"listen"`
	File    string         `yaml:"file"`
	Unknown gemini.Unknown `yaml:"unknown"`
	Turn    time.Duration  `yaml:"turn"`
}

// Options returns the options of a server for c.
func (c Gemini) Options() gemini.Options {
	return gemini.Options{Role: c.Role, Listen: c.Listen, File: c.File, Unknown: c.Unknown, Turn: c.Turn}
}

func checkGemini(list []Gemini) error {
	at := map[string]int{}
	for i, c := range list {
		o := c.Options()
		if err := o.Check(); err != nil {
			return fmt.Errorf("enforcer.gemini[%d].%w", i, err)
		}
		if before, taken := at[o.Listen]; taken {
			return fmt.Errorf("enforcer.gemini[%d].listen: %s is taken by gemini[%d]", i, o.Listen, before)
		}
		at[o.Listen] = i
	}
	return nil
}
