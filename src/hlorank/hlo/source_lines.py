"""Operations and lines of a program's source that its instructions come from."""

from pathlib import Path

from hlorank.hlo.hlo_pb2 import HloInstructionProto, HloModuleProto, OpMetadata


def origin(module: HloModuleProto, instruction: HloInstructionProto) -> OpMetadata:
    """Return the operation, file and line of an instruction, or empty values; stack frames are numbered from 1."""
    metadata, table = instruction.metadata, module.stack_frame_index
    known = OpMetadata(op_name=metadata.op_name, source_file=metadata.source_file, source_line=metadata.source_line)
    if not known.source_file and 0 < metadata.stack_frame_id <= len(table.stack_frames):
        frame = table.stack_frames[metadata.stack_frame_id - 1]
        if 0 < frame.file_location_id <= len(table.file_locations):
            location = table.file_locations[frame.file_location_id - 1]
            if 0 < location.file_name_id <= len(table.file_names):
                known.source_file, known.source_line = table.file_names[location.file_name_id - 1], location.line
    return known


def origin_text(module: HloModuleProto, instruction: HloInstructionProto) -> str:
    """Return an origin as text, such as `jit(f)/dot_general (model.py:12)`."""
    known = origin(module, instruction)
    place = f"{Path(known.source_file).name}:{known.source_line}" if known.source_file else ""
    return " ".join(filter(None, [known.op_name, place and f"({place})"]))


def keep_origins(module: HloModuleProto) -> None:
    """Reduce the metadata of a module to the origins of its instructions."""
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.HasField("metadata"):
                instruction.metadata.CopyFrom(origin(module, instruction))
    module.ClearField("stack_frame_index")
