{{- define "gpusteward.name" -}}
{{ .Values.nameOverride | default .Chart.Name }}
{{- end }}

{{/* The name of every object, or the beginning of it. */}}
{{- define "gpusteward.fullname" -}}
{{- $name := include "gpusteward.name" . -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "gpusteward.selector" -}}
app.kubernetes.io/name: {{ include "gpusteward.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gpusteward.labels" -}}
{{ include "gpusteward.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "gpusteward.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{/* Denies everything. Callers add what a container needs. */}}
{{- define "gpusteward.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "gpusteward.enforces" -}}
{{- if dig "enforcer" "enabled" false .Values.config }}true{{ end }}
{{- end }}

{{/* What the operator's monitors change in the labels of a target. */}}
{{- define "gpusteward.relabelings" -}}
# Rules and dashboards select this job. The node replaces the pod's
# address, which changes with each pod.
- {targetLabel: job, replacement: gpusteward}
- {sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: instance}
# The agent's own pod must not hide the pods that use the GPUs.
- {action: labeldrop, regex: namespace|pod|container|endpoint|service}
{{- end }}
