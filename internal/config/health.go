package config

import (
	"fmt"
	"log/slog"
	"maps"

	promconfig "github.com/prometheus/common/config"

	"gpusteward/health"
	"gpusteward/health/notifier"
)

// Health says what alerts, and who is told.
type Health struct {
	Page                   []string          `yaml:"page"`
	Labels                 map[string]string `yaml:"labels"`
	Alertmanagers          []string          `yaml:"alertmanagers"`
	AlertmanagerHTTPConfig string            `yaml:"alertmanager_http_config"`
}

// Settings returns what the checks need.
func (c Health) Settings() health.Settings {
	return health.Settings{Page: c.Page, Labels: maps.Clone(c.Labels)}
}

// Notifier reads how Alertmanagers are talked to. The error begins with the key.
func (c Health) Notifier() (notifier.Options, error) {
	o := notifier.Options{URLs: c.Alertmanagers, HTTP: promconfig.DefaultHTTPClientConfig}
	if c.AlertmanagerHTTPConfig != "" {
		file, _, err := promconfig.LoadHTTPConfigFile(c.AlertmanagerHTTPConfig)
		if err != nil {
			return o, fmt.Errorf("alertmanager_http_config: %w", err)
		}
		o.HTTP = *file
	}
	return o, nil
}

func (c Health) validate() error {
	if err := c.Settings().Validate(); err != nil {
		return err
	}
	o, err := c.Notifier()
	if err == nil {
		o.Log = slog.New(slog.DiscardHandler)
		_, err = notifier.New(o)
	}
	if err != nil {
		return fmt.Errorf("health.%w", err)
	}
	return nil
}
