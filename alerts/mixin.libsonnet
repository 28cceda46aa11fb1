// The dashboards and rules as a Prometheus mixin, for those who vendor mixins. It imports the
// generated files and adds nothing. Requires go-jsonnet 0.20, as in mixtool, Tanka and Grizzly.
//
//   local gpusteward = import 'gpusteward/alerts/mixin.libsonnet';
//   gpusteward { _config+:: { checks: false } }
{
  _config:: {
    // false if the agents alert Alertmanager themselves.
    checks: true,
    // Rules whose thresholds are a matter of judgement.
    judgement: false,
    // Rules about stragglers need a scrape interval of 5s.
    stragglers: false,
    // The part that should be good over 30 days, by service level. The missing ones have the
    // values of objectives.rules.yml.
    objectives: {},
  },

  local config = self._config,
  local groups(text) = std.parseYaml(text).groups,
  // A group that has alerts is an alert's, with the recording rules that they need.
  local alerting(group) = std.length([r for r in group.rules if std.objectHas(r, 'alert')]) > 0,
  local rules =
    (if config.checks then groups(importstr 'gpusteward.rules.yml') else []) +
    (if config.judgement then groups(importstr 'gpusteward-judgement.rules.yml') else []) +
    (if config.stragglers then groups(importstr 'stragglers.rules.yml') else []) +
    groups(importstr 'fleet.rules.yml') +
    groups(importstr 'recording.rules.yml') +
    groups(importstr 'slo.rules.yml') +
    [
      group {
        rules: [
          r + (if std.objectHas(config.objectives, r.labels.slo)
               then { expr: 'vector(%g)' % config.objectives[r.labels.slo] } else {})
          for r in group.rules
        ],
      }
      for group in groups(importstr 'objectives.rules.yml')
    ],

  prometheusAlerts+:: { groups+: [g for g in rules if alerting(g)] },
  prometheusRules+:: { groups+: [g for g in rules if !alerting(g)] },

  grafanaDashboards+:: {
    'gpusteward-agent.json': import '../dashboards/gpusteward-agent.json',
    'gpusteward-fleet.json': import '../dashboards/gpusteward-fleet.json',
    'gpusteward-gpu.json': import '../dashboards/gpusteward-gpu.json',
    'gpusteward-health.json': import '../dashboards/gpusteward-health.json',
    'gpusteward-host.json': import '../dashboards/gpusteward-host.json',
    'gpusteward-jobs.json': import '../dashboards/gpusteward-jobs.json',
    'gpusteward-quotas.json': import '../dashboards/gpusteward-quotas.json',
    'gpusteward-workloads.json': import '../dashboards/gpusteward-workloads.json',
  },
}
