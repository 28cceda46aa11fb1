package config

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	promconfig "github.com/prometheus/common/config"

	"gpusteward/health"
	"gpusteward/health/notifier"
	"gpusteward/internal/input"
)

// Health says what alerts, and where alerts are sent.
type Health struct {
	EnableAlerts           []string                     `yaml:"enable_alerts"`
	Page                   []string                     `yaml:"page,omitempty"` // the older name of EnableAlerts
	Disable                []string                     `yaml:"disable"`
	Thresholds             map[string]map[string]string `yaml:"thresholds"` // by check and severity
	Labels                 map[string]string            `yaml:"labels"`
	Alertmanagers          []string                     `yaml:"alertmanagers"`
	AlertmanagerHTTPConfig string                       `yaml:"alertmanager_http_config"`
}

// Settings returns the settings of the checks.
func (c Health) Settings() health.Settings {
	return health.Settings{EnableAlerts: slices.Concat(c.EnableAlerts, c.Page), Disable: c.Disable,
		Thresholds: c.Thresholds, Labels: maps.Clone(c.Labels)}
}

// Notifier returns the options of the notifier. An error begins with the key.
func (c Health) Notifier() (notifier.Options, error) {
	o := notifier.Options{URLs: c.Alertmanagers, HTTP: promconfig.DefaultHTTPClientConfig}
	if c.AlertmanagerHTTPConfig != "" {
		var err error
		if o.HTTP, err = httpConfig(c.AlertmanagerHTTPConfig); err != nil {
			return o, fmt.Errorf("alertmanager_http_config: %w", err)
		}
	}
	return o, nil
}

func (c Health) validate() error {
	var wrong input.Errors
	both := wrong.If(c.Page != nil && c.EnableAlerts != nil, "health.page: it is the older name of health.enable_alerts, "+
		"which is there too: move its checks there")
	for _, err := range input.Each(c.Settings().Validate()) {
		rest, ok := strings.CutPrefix(err.Error(), "health.enable_alerts")
		if ok && c.Page != nil {
			err = errors.New("health.page" + rest) // the key in the file
		}
		if !ok || !both {
			wrong = append(wrong, err)
		}
	}
	o, err := c.Notifier()
	if err == nil {
		o.Log = slog.New(slog.DiscardHandler)
		_, err = notifier.New(o)
	}
	wrong.Below("health.", err)
	return wrong.Err()
}
