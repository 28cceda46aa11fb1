package config

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"gpusteward/collectors"
)

// A File is the configuration file in force. A bad file never replaces a good
// one.
type File struct {
	Root     string // directory that the default paths of the configuration begin at; empty: /
	Path     string
	Optional bool // a missing file means defaults
	Log      *slog.Logger

	mu   sync.Mutex
	good bool      // the last read
	when time.Time // of the last good read
	now  Config    // the last good one
}

// Load reads the file. A good one is in force from then on.
func (f *File) Load() (Config, error) {
	c, err := load(f.Root, f.Path)
	if f.Optional && errors.Is(err, fs.ErrNotExist) {
		c, err = defaults(f.Root), nil
	}
	if err == nil {
		for _, w := range c.Warnings() {
			f.Log.Warn(w, "config", f.Path)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.good = err == nil; f.good {
		f.when, f.now = time.Now(), c
	}
	return c, err
}

// Warnings returns what a valid file should no longer say.
func (c Config) Warnings() (all []string) {
	if c.Web.MaxScrapes != nil {
		all = append(all, "web.max_scrapes no longer has an effect: remove it from the configuration")
	}
	if c.Enforcer.Default.Reclaim.Do != "" ||
		slices.ContainsFunc(c.Enforcer.Tenants, func(t Tenant) bool { return t.Reclaim.Do != "" }) {
		all = append(all, "reclaim.do no longer has an effect: an idle workload is suspended; remove it from the "+
			"configuration")
	}
	if c.Health.Page != nil {
		all = append(all, "health.page is the older name of health.enable_alerts: rename it in the configuration")
	}
	if c.Enforcer.MPS != nil {
		all = append(all, "enforcer.mps is the older name of enforcer.sharing: replace true by concurrent, and false by turns")
	}
	return all
}

// Fast returns the interval of the fast tier in force.
func (f *File) Fast() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now.Collectors.Fast
}

// Origin returns where the configuration comes from.
func (f *File) Origin() string {
	if _, err := os.Stat(f.Path); err != nil {
		return "defaults (no " + f.Path + ")"
	}
	return f.Path
}

// ReloadOn reads the file again at every signal until ctx ends.
func (f *File) ReloadOn(ctx context.Context, signals <-chan os.Signal, apply func(Config)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-signals:
			c, err := f.Load()
			if err != nil {
				f.Log.Error("configuration not reloaded, the previous one stays in force", "err", err)
				continue
			}
			apply(c)
			f.Log.Info("configuration reloaded", "config", f.Origin())
		}
	}
}

// Samples reports how the last read went.
func (f *File) Samples() []collectors.Sample {
	f.mu.Lock()
	defer f.mu.Unlock()
	return []collectors.Sample{
		{Metric: collectors.ConfigReloadSuccess, Value: collectors.Bool(f.good)},
		{Metric: collectors.ConfigReloadTime, Value: float64(f.when.UnixMilli()) / 1e3},
	}
}
