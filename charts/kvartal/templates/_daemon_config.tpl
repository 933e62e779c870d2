{{- define "kvartal.daemonConfig" -}}
{{- $daemon := .Values.daemon -}}
runDir: /run/kvartal
attachSocketMode: {{ $daemon.socketMode | quote }}
# Not beside the socket that pods see: whoever is root in a pod, or of the daemon's uid, could open it there.
adminSocket: /run/kvartal-admin/admin.sock
attestUid: false
kubernetes:
  audience: {{ $daemon.tokens.audience | quote }}
  hostPids: {{ $daemon.tokens.hostPids }}
  {{- if not .Values.operator.enabled }}
  issuer: {{ $daemon.tokens.issuer | quote }}
  jwksFile: /etc/kvartal/jwks.json
  {{- end }}
dram:
  size: {{ $daemon.memory.size }}
{{- if $daemon.nvme.enabled }}
nvme:
{{- range $i, $disk := $daemon.nvme.disks }}
- path: /var/lib/kvartal/nvme/{{ $i }}/cache.dat
  size: {{ $disk.size }}
  io: {{ $daemon.nvme.io }}
  ioThreads: {{ $daemon.nvme.ioThreads }}
{{- end }}
{{- if $daemon.nvme.keySecret }}
nvmeKeyFile: /etc/kvartal-nvme/nvme.keys
{{- end }}
{{- end }}
eviction: {{ $daemon.eviction }}
{{- if .Values.operator.enabled }}
policyStream:
  operator: {{ include "kvartal.name" . }}-operator.{{ .Release.Namespace }}.svc:9443
  keepIn: /var/lib/kvartal/state/policy
  caFile: /etc/kvartal-operator/ca.crt
  tokenFile: /var/run/secrets/kvartal-operator/token
{{- else }}
policyDir: /etc/kvartal-policy
{{- end }}
metricsAddress: 0.0.0.0:9464
{{- if $daemon.audit.enabled }}
auditLog: /var/lib/kvartal/state/audit.jsonl
{{- end }}
logLevel: {{ $daemon.logLevel }}
removedGraceSeconds: {{ int64 $daemon.removedGraceSeconds }}
leaseMs: {{ int64 $daemon.leaseMs }}
{{- end }}
