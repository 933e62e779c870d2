{{- define "kvartal.name" -}}
{{- /* Alerts know the lease by the chart's name, so that is never cut off. */}}
{{- $release := .Release.Name | trunc 40 | trimSuffix "-" }}
{{- if contains .Chart.Name $release }}{{ $release }}{{ else }}{{ printf "%s-%s" (.Release.Name | trunc 32 | trimSuffix "-") .Chart.Name }}{{ end }}
{{- end }}

{{/* (dict "root" $ "component" "daemon") */}}
{{- define "kvartal.selector" -}}
app.kubernetes.io/name: kvartal
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "kvartal.labels" -}}
{{ include "kvartal.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: kvartal
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* (dict "root" $ "image" .Values.image.daemon) */}}
{{- define "kvartal.image" -}}
{{- with .root.Values.global.imageRegistry }}{{ trimSuffix "/" . }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{/* A size of the values in MiB. */}}
{{- define "kvartal.mebibytes" -}}
{{- $number := regexFind "^[0-9]+" . | int64 }}
{{- if hasSuffix "Ti" . }}{{ mul $number 1048576 }}{{ else if hasSuffix "Gi" . }}{{ mul $number 1024 }}{{ else }}{{ $number }}{{ end }}
{{- end }}

{{- define "kvartal.daemonMemory" -}}
{{- add (include "kvartal.mebibytes" .Values.daemon.memory.size | int64) (include "kvartal.mebibytes" .Values.daemon.memory.overhead | int64) }}Mi
{{- end }}

{{- define "kvartal.tlsSecret" -}}
{{- if eq .Values.operator.tls.mode "existingSecret" }}{{ .Values.operator.tls.existingSecret }}{{ else }}{{ include "kvartal.name" . }}-operator-tls{{ end }}
{{- end }}

{{- define "kvartal.daemonPriorityClass" -}}
{{- if .Values.priorityClass.create }}{{ include "kvartal.name" . }}-daemon{{ else }}{{ .Values.daemon.priorityClassName }}{{ end }}
{{- end }}

{{/* What values.schema.json cannot see: values that only together make no sense. */}}
{{- define "kvartal.validate" -}}
{{- if and (eq .Values.operator.tls.mode "existingSecret") (not .Values.operator.tls.existingSecret) }}
{{- fail "operator.tls.mode is existingSecret: name it in operator.tls.existingSecret" }}
{{- end }}
{{- if and (eq .Values.operator.tls.mode "certManager") (not .Values.operator.tls.issuerRef.name) }}
{{- fail "operator.tls.mode is certManager: name the issuer in operator.tls.issuerRef" }}
{{- end }}
{{- if and .Values.operator.enabled .Values.daemon.staticPolicy }}
{{- fail "daemon.staticPolicy is for clusters without the operator: set operator.enabled=false, or apply the manifests with kubectl" }}
{{- end }}
{{- if and (not .Values.operator.enabled) (not (and .Values.daemon.tokens.issuer .Values.daemon.tokens.jwks)) }}
{{- fail "without the operator nobody tells the daemons whose tokens count: set daemon.tokens.issuer and daemon.tokens.jwks" }}
{{- end }}
{{- if and (not .Values.operator.enabled) (not .Values.daemon.staticPolicy) }}
{{- fail "without the operator there is no policy: set daemon.staticPolicy" }}
{{- end }}
{{- end }}
