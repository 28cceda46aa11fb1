package config

import (
	"fmt"
	"time"

	"gpusteward/enforcer/gemini"
	"gpusteward/internal/input"
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
	var wrong input.Errors
	at := map[string]int{}
	for i, c := range list {
		o := c.Options()
		if err := o.Check(); err != nil {
			wrong.Below(fmt.Sprintf("enforcer.gemini[%d].", i), err)
			continue
		}
		before, taken := at[o.Listen]
		wrong.If(taken, "enforcer.gemini[%d].listen: %s is taken by gemini[%d]", i, o.Listen, before)
		at[o.Listen] = i
	}
	return wrong.Err()
}
