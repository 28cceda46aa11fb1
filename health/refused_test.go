package health_test

import (
	"testing"

	_ "gpusteward/collectors/all"
	"gpusteward/internal/config"
	"gpusteward/internal/fixture"
)

// TestRefusedSettings reads files that only this package refuses.
func TestRefusedSettings(t *testing.T) {
	fixture.Refused(t, "../internal/config/testdata/invalid/health_*.yml",
		func(path string) error { return fixture.Error(config.Load(path)) })
}
